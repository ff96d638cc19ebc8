"""OpenAPI models of bodies and responses. The readers of rules/ validate bodies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from crestgate.rules.rule import rule_body_schema, rule_schema

__all__ = [
    "AuditPage",
    "Count",
    "EffectiveLimits",
    "MigrationReport",
    "Model",
    "OverrideBody",
    "PlanBody",
    "PlanLimits",
    "PlanPage",
    "PlanResponse",
    "Problem",
    "RuleBody",
    "RulePage",
    "RuleResponse",
    "State",
    "Stats",
    "TierBody",
    "UserTier",
]

State = Literal["normal", "warning", "throttled"]
Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]


class Model(BaseModel):
    """A model without unknown fields."""

    model_config = ConfigDict(extra="forbid")


# -- errors ---------------------------------------------------------------------------------------------------------


class FieldError(Model):
    field: Annotated[str, Field(description="Its path, such as `limits[2].limitName`; empty for the whole body.")]
    message: str


class Problem(BaseModel):
    """Every error (RFC 9457). `error` and `message` repeat `title` and `detail`."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    message: str
    timestamp: Timestamp
    problems: list[FieldError] | None = None


# -- rules ----------------------------------------------------------------------------------------------------------


class RuleBody(Model):
    """Described by the declaration of a rule."""

    @classmethod
    def __get_pydantic_json_schema__(cls, _: Any, __: Any) -> dict[str, Any]:
        return rule_body_schema()


class RuleResponse(Model):
    """Described by the declaration of a rule."""

    @classmethod
    def __get_pydantic_json_schema__(cls, _: Any, __: Any) -> dict[str, Any]:
        return rule_schema()


Next = Annotated[str | None, Field(description="Send it as `after` for the next page; null when this is the last.")]


class UnreadableRule(Model):
    kind: Annotated[str, Field(description="`rule`, `tier`, `plan`, `default` or `key`; a newer version has others.")]
    id: str
    message: Annotated[str, Field(description="What is wrong with it.")]


class RulePage(Model):
    rules: list[RuleResponse]
    next: Next
    unreadable: Annotated[
        list[UnreadableRule] | None,
        Field(
            description="Stored rules, plans, tiers and defaults that cannot be used, up to 100 of them; their last "
            "valid versions stay in force. Absent if there are none."
        ),
    ] = None


# -- plans ----------------------------------------------------------------------------------------------------------


Limits = Annotated[
    str | list[str],
    Field(description="A limit, or a list of limits that all apply.", examples=["10/second burst 20"]),
]


Lease = Annotated[
    bool | None,
    Field(
        description="Whether processes decide from slices of the limits that they charge in advance; by "
        "default `false`. For `token_bucket`, `fixed_window`, `gcra` and calendar windows."
    ),
]


class PlanBody(Model):
    """A plan in a request."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "gold", "limits": ["10/second burst 20", "5000/day"]}]},
    )

    name: str
    limits: Limits
    lease: Lease = None


class PlanLimits(Model):
    """The limits of a plan; its name is in the path."""

    name: str | None = None
    limits: Limits
    lease: Lease = None


class PlanResponse(Model):
    name: str
    limits: Annotated[list[str], Field(description="Each in its canonical notation.")]
    lease: Annotated[bool, Field(description="Only of a plan with leases: true.")] = False


class PlanPage(Model):
    plans: list[PlanResponse]
    next: Next


# -- users ----------------------------------------------------------------------------------------------------------


class EffectiveLimit(Model):
    """A rule that applies to the user, and its counter."""

    rule: Annotated[str, Field(description="The rule_id.")]
    name: str
    endpoint_pattern: str
    method: str
    tier: str
    algorithm: str
    mode: Literal["enforce", "shadow"]
    window_seconds: Annotated[float, Field(description="Of a calendar window the longest: 31 days for a month.")]
    calendar: Annotated[str, Field(description="Only of a calendar window: its unit, such as `month`.")] = ""
    timezone: Annotated[str, Field(description="Only of a calendar window: its time zone.")] = ""
    lease: Annotated[bool, Field(description="Only of a rule with leases: true.")] = False
    expires_at: Timestamp | None
    limit: Count
    remaining: Count
    current_count: Count
    reset_after: Annotated[float, Field(ge=0, description="Seconds until the counter is fully reset.")]
    state: State


class EffectiveLimits(Model):
    user_id: str
    tier: str
    limits: list[EffectiveLimit]
    next: Annotated[str | None, Field(description="Send it as `after` for the next page; null when this is the last.")]


class TierBody(Model):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"tier": "premium"}]})

    tier: Annotated[str | None, Field(description="null removes the tier: the user is in `free` again.")]


class UserTier(Model):
    user_id: str
    tier: str


class OverrideBody(Model):
    """A temporary limit for one user. Name the rule, or the slot by its pattern and window."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"rule_id": "orders-per-user", "limit": 500, "duration_seconds": 3600}]},
    )

    rule_id: str | None = None
    endpoint_pattern: str | None = None
    window_seconds: Annotated[float | None, Field(gt=0)] = None
    method: Annotated[str | None, Field(description="Of the slot; `*` by default. Not together with `rule_id`.")] = None
    limit: Count
    duration_seconds: Annotated[float, Field(gt=0)]


# -- audit and statistics -------------------------------------------------------------------------------------------


class AuditEntryResponse(Model):
    id: str
    at: Timestamp
    actor: Annotated[str, Field(description="`key:` and the name of the key; `crestgate` for expired records.")]
    address: str
    action: Annotated[
        str,
        Field(
            description="`create`, `update`, `delete` or `expire`. For counters `reset` or `reset failed`, "
            "and `reset requested` if nobody knows what became of it; likewise `give_back`, `charge`, `settle` and "
            "`release`."
        ),
    ]
    subject: Annotated[str, Field(description="The kind and the id: `rule:orders-per-user`, `tier:alice`.")]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class AuditPage(Model):
    entries: Annotated[list[AuditEntryResponse], Field(description="The newest first.")]
    next: Annotated[str | None, Field(description="Send it as `before` for the next page; null when this is the last.")]


class Totals(Model):
    allowed: Count
    denied: Count
    shadowed: Annotated[Count, Field(description="Requests that shadow rules would have denied.")]


class Point(Totals):
    at: Annotated[Timestamp, Field(description="Start of the minute or hour.")]


class RuleTotals(Totals):
    rule: str


class SubjectTotals(Model):
    subject: str
    allowed: Count
    denied: Count


class Stats(Model):
    since: Timestamp
    until: Timestamp
    step: Literal["minute", "hour"]
    rule: str | None
    totals: Totals
    series: Annotated[list[Point], Field(description="Minutes or hours without checks have no point.")]
    rules: Annotated[list[RuleTotals], Field(description="Totals by rule, most denials first.")]
    top: Annotated[list[SubjectTotals], Field(description="The subjects with the most requests, over all rules.")]
    top_denied: Annotated[list[SubjectTotals], Field(description="The subjects with the most denials, over all rules.")]


# -- migration ------------------------------------------------------------------------------------------------------


class MigrationStore(Model):
    store: Annotated[str, Field(description="Its URL, without a password.")]
    counters: Annotated[Count | None, Field(description="Counters in it; null if it cannot list them.")]
    to_move: Annotated[
        Count | None,
        Field(description="Of these, those that belong into the other store; null where only some rules are moved."),
    ]
    complete: Annotated[bool, Field(description="False if there are more than were counted.")]
    error: Annotated[str | None, Field(description="Why it could not be read.")]


class MigrationCarried(Model):
    to: Annotated[Count, Field(description="Counters that the workers carried to the new store since the start.")]
    back: Annotated[Count, Field(description="And back to the old one.")]
    from_errors: Annotated[Count, Field(description="Carries that failed because the old store did.")]
    to_errors: Annotated[Count, Field(description="Carries that failed because the new store did.")]


class MigrationReport(Model):
    from_: Annotated[MigrationStore, Field(alias="from")]
    to: MigrationStore
    percent: Annotated[float, Field(ge=0, le=100)]
    rules: list[str]
    endpoints: list[str]
    carried: MigrationCarried
