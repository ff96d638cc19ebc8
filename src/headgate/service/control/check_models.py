"""The shapes of checks and decisions, for OpenAPI. What reads and writes them is in service/data/."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from headgate.service.control.models import Count, Problem, Shape, State

__all__ = ["SHAPES"]

Cost = Annotated[int, Field(ge=0, le=2**31 - 1, description="How many units it takes; 1 unless said.")]
Timestamp = Annotated[
    int | float | None, Field(description="Unix seconds; never decides, only how far off it is is measured.")
]
Name = Annotated[str, Field(min_length=1)]
Reason = Literal[
    "ok", "limited", "cost_exceeds_limit", "blocked", "fail_open", "fail_closed", "fallback", "shadow", "no_rule",
    "replayed",
]  # fmt: skip


class SubjectCheck(Shape):
    """A dimension and who it is: the rules for it, and those for the API and for everybody."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"dimension": "USER", "identifier": "42", "endpoint": "/api/v1/orders", "method": "GET"}]
        },
    )

    dimension: Annotated[str, Field(description="USER, IP, API_KEY, CLIENT, KEY, API or GLOBAL, in any case.")]
    identifier: str | None = None
    endpoint: Annotated[str | None, Field(description="The path of the request, or an API's name.")] = None
    method: str | None = None
    cost: Cost = 1
    timestamp: Timestamp = None


class CheckContext(Shape):
    """The request that is asked about; what is not known is left out."""

    ip: Name | None = None
    user: Name | None = None
    api_key: Name | None = None
    client: Name | None = None
    path: str | None = None
    method: Name | None = None
    tier: Annotated[Name | None, Field(description="Of the user, where the caller knows it better.")] = None


class ContextCheck(Shape):
    """A whole request: all rules that apply to it."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"context": {"user": "42", "ip": "10.0.0.1", "path": "/api/v1/orders"}}]},
    )

    context: CheckContext
    cost: Cost = 1
    timestamp: Timestamp = None


class KeyCheck(Shape):
    """An opaque key under plans; without plans, under its policy."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"key": "user:42", "plans": ["gold", "daily"], "cost": 1}]}
    )

    key: Annotated[str, Field(min_length=1, description="1,024 bytes at most.")]
    plans: Annotated[list[str] | None, Field(min_length=1, max_length=20)] = None
    cost: Cost = 1
    timestamp: Timestamp = None


RuleOp = Annotated[
    Literal["take", "peek", "reset"],
    Field(description="What is to be done: check, look, or forget the counters (which needs scope `write`)."),
]


class SubjectItem(SubjectCheck):
    op: RuleOp = "take"


class ContextItem(ContextCheck):
    op: RuleOp = "take"


class KeyItem(KeyCheck):
    op: RuleOp = "take"


class NamedCounter(Shape):
    """A key under a limit that is written out, or under all limits of a plan."""

    key: Annotated[str, Field(min_length=1, description="1,024 bytes at most.")]
    name: Annotated[str | None, Field(min_length=1, max_length=1024, description="The limit itself unless said.")] = (
        None
    )
    limit: Annotated[str | None, Field(max_length=256, description="Such as `100/minute`; this or `plan`.")] = None
    plan: Annotated[str | None, Field(description="The name of a plan; it goes with key and cost alone.")] = None
    cost: Cost = 1
    binds: Annotated[bool, Field(description="Whether it may deny; else it is counted beside the others.")] = True
    tick: Annotated[int, Field(ge=0, le=2**53 - 1, description="Of `give_back`: what the answer to `take` said.")] = 0
    amount: Annotated[
        int, Field(ge=0, le=2**31 - 1, description="Of `give_back`: how much of the cost is returned.")
    ] = 0
    token: Annotated[
        str | None,
        Field(
            max_length=200,
            description="Of `give_back` and `charge`: what the answer to the `take` said. Without one, scope `write`.",
        ),
    ] = None


class CountersItem(Shape):
    """Counters one by one, all or nothing. Limits that are written out are all counted as the rule `inline`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "op": "take",
                    "counters": [{"key": "user:42", "limit": "100/minute"}, {"key": "user:42", "plan": "gold"}],
                }
            ]
        },
    )

    counters: Annotated[list[NamedCounter], Field(min_length=1, max_length=100)]
    op: Annotated[
        Literal["take", "peek", "charge", "give_back", "reset"],
        Field(
            description="`charge` takes whether or not it fits, `give_back` returns what was taken: both show the "
            "token of the take, or need scope `write`. `reset` forgets the counters, and needs scope `write`."
        ),
    ] = "take"
    timestamp: Timestamp = None


class BatchBody(Shape):
    checks: Annotated[list[SubjectItem | ContextItem | KeyItem | CountersItem], Field(max_length=1000)]
    exact: Annotated[
        bool,
        Field(
            description="Answer each check with all of its counters in whole numbers, and a check that cannot be "
            "decided with an error of its own."
        ),
    ] = False


class DecisionPart(Shape):
    """The numbers of one limit."""

    allowed: bool
    limit: Count
    remaining: Count
    current_count: Annotated[Count, Field(description="limit − remaining.")]
    reset_at: Annotated[int, Field(description="Unix seconds.")]
    reset_after: Annotated[float, Field(ge=0, description="Seconds until the counter is as good as new.")]
    retry_after: Annotated[float | None, Field(description="Seconds; null when allowed, and when no waiting helps.")]
    reason: Reason
    rule: Annotated[str | None, Field(description="Which rule or plan decided; null when there is none.")]
    state: State
    delay: Annotated[float, Field(ge=0, description="Seconds an admitted request should wait (leaky bucket).")]
    queue_position: Annotated[Count, Field(description="Of leaky buckets only.")] = 0


class DecisionShown(DecisionPart):
    """A decision: the numbers of the limit that binds most, and of all when there were several."""

    parts: Annotated[
        list[DecisionPart], Field(description="When several limits applied, in order.", default_factory=list)
    ]
    shadows: Annotated[
        list[DecisionPart], Field(description="What shadow rules would have said.", default_factory=list)
    ]


class ExactCounter(Shape):
    """One counter in whole numbers, times in microseconds. `key` and what follows: where the check has not said it."""

    allowed: bool
    remaining: int
    wait: Annotated[
        int | None,
        Field(description="Until a denied request would pass, null for never; of an admitted one the units before it."),
    ]
    reset: int
    reason: Reason
    tick: int
    token: Annotated[
        str, Field(description="For `give_back` and `charge`, once, by the same caller; of counters that were charged.")
    ] = ""
    at: Annotated[int, Field(description="Which of the counters that the check has named.")] = 0
    key: str = ""
    name: str = ""
    label: str = ""
    limit: str = ""
    binds: bool = True


class CountersShown(Shape):
    """With `exact`: all counters of a check; none where no rule applies."""

    counters: list[ExactCounter]


class NotDecided(Shape):
    """With `exact`: why this check was not decided."""

    error: Problem


class BatchShown(Shape):
    decisions: Annotated[
        list[DecisionShown | CountersShown | NotDecided], Field(description="In the order of the checks.")
    ]


class CounterShown(Shape):
    key: Annotated[str, Field(description="The subject, such as `user:42`.")]
    rule: Annotated[str, Field(description="The rule or plan that it was counted for.")]


class ResetShown(Shape):
    reset: Annotated[list[CounterShown], Field(description="The counters that were forgotten.")]


class Alive(Shape):
    status: Literal["alive"]
    version: str


class Readiness(Shape):
    status: Literal["ready"]
    checks: Annotated[dict[str, str], Field(description="What was asked, and `ok` or what is wrong with it.")]


class VerifyBody(Shape):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"clientId": "client123", "apiName": "getUsers", "methodName": "GET"}]},
    )

    clientId: Name  # noqa: N815 - as it is spelled
    apiName: str | None = None  # noqa: N815
    methodName: Name | None = None  # noqa: N815


class Verified(Shape):
    """What the client family is answered with."""

    status: Literal["SUCCESS", "FAILURE"]
    message: str


SHAPES: tuple[type[BaseModel], ...] = (
    Alive, BatchBody, BatchShown, ContextCheck, DecisionShown, KeyCheck, Readiness, ResetShown, SubjectCheck,
    VerifyBody, Verified,
)  # fmt: skip
