"""The shapes of bodies and answers, for OpenAPI. What values mean, and their bounds, is in the readers of rules/."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "AuditPage",
    "Count",
    "EffectiveLimits",
    "Override",
    "PlanBody",
    "PlanLimits",
    "PlanPage",
    "PlanShown",
    "Problem",
    "RuleBody",
    "RulePage",
    "RuleShown",
    "Shape",
    "State",
    "Stats",
    "TierBody",
    "UserTier",
]

Dimension = Literal["user", "apikey", "client", "ip", "key", "api", "global"]
Algorithm = Literal[
    "sliding_window_counter", "sliding_window", "token_bucket", "leaky_bucket", "fixed_window", "sliding_window_log",
    "gcra",
]  # fmt: skip
Mode = Literal["enforce", "shadow", "disabled"]
OnStoreError = Literal["open", "closed", "local"]
State = Literal["normal", "warning", "throttled"]
Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]


class Shape(BaseModel):
    """All fields there are, and no other."""

    model_config = ConfigDict(extra="forbid")


# -- errors ---------------------------------------------------------------------------------------------------------


class Mistake(Shape):
    field: Annotated[str, Field(description="The way to it, such as `limits[2].limitName`; empty for the whole.")]
    message: str


class Problem(BaseModel):
    """Every error (RFC 9457). `error` and `message` say the same as `title` and `detail`."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    message: str
    timestamp: Moment
    problems: list[Mistake] | None = None


# -- rules ----------------------------------------------------------------------------------------------------------


class RuleBody(Shape):
    """A rule as it is written. What is left out has its default."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "name": "Orders per user",
                    "dimension": "user",
                    "endpoint_pattern": "/api/v1/orders/*",
                    "limit": 100,
                    "window_seconds": 60,
                }
            ]
        },
    )

    rule_id: Annotated[str | None, Field(description="Made from the name when absent.")] = None
    name: str | None = None
    dimension: Annotated[Dimension, Field(description="Whom it limits. Any case will do; `API_KEY` is `apikey`.")]
    limit: Annotated[int, Field(ge=0, description="How many in the window; 0 blocks.")]
    window_seconds: Annotated[float, Field(gt=0)]
    identifier: Annotated[str | None, Field(description="One of that dimension, or `*` for everybody.")] = None
    endpoint_pattern: Annotated[
        str | None, Field(description="`/users/*/orders`, `/api/**`, `/users/{id}`; `*` is every path.")
    ] = None
    method: Annotated[str | None, Field(description="GET, POST, …, or `*`.")] = None
    tier: Annotated[str | None, Field(description="Of the user, or `*`.")] = None
    algorithm: Annotated[
        Algorithm | None,
        Field(description="`sliding_window_counter` unless said, which is `sliding_window`, too."),
    ] = None
    burst: Annotated[int | None, Field(description="Of buckets and gcra; the limit unless said.")] = None
    mode: Annotated[Mode | None, Field(description="`enforce` unless said; `shadow` only counts.")] = None
    on_store_error: Annotated[OnStoreError | None, Field(description="The service's own unless said.")] = None
    expires_at: Annotated[str | float | None, Field(description="RFC 3339, or unix seconds.")] = None
    created_at: Annotated[Any, Field(description="Told by Headgate, and not looked at.")] = None
    updated_at: Annotated[Any, Field(description="Told by Headgate, and not looked at.")] = None
    version: Annotated[Any, Field(description="Told by Headgate, and not looked at: send If-Match.")] = None
    origin: Annotated[dict[str, Any] | None, Field(description="Told by Headgate of policies and clients.")] = None


class RuleShown(Shape):
    """A rule as it is."""

    rule_id: str
    name: str
    dimension: Dimension
    identifier: str
    endpoint_pattern: str
    method: str
    tier: str
    algorithm: str
    limit: Count
    window_seconds: Annotated[float, Field(gt=0)]
    burst: int | None
    mode: Mode
    on_store_error: OnStoreError | None
    expires_at: Moment | None
    created_at: Annotated[Moment | None, Field(description="null for a rule that is written in a file.")]
    updated_at: Moment | None
    version: Count
    origin: Annotated[
        dict[str, Any] | None, Field(description="What a policy or a client's limit was given, where it is one.")
    ] = None


Next = Annotated[str | None, Field(description="Send it as `after` for the next page; null when this is the last.")]


class RulePage(Shape):
    rules: list[RuleShown]
    next: Next


# -- plans ----------------------------------------------------------------------------------------------------------


Limits = Annotated[
    str | list[str],
    Field(description="A limit, or several that are passed together.", examples=["10/second burst 20"]),
]


class PlanBody(Shape):
    """A plan as it is written."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "gold", "limits": ["10/second burst 20", "5000/day"]}]},
    )

    name: str
    limits: Limits


class PlanLimits(Shape):
    """A plan's limits; its name is that of the path."""

    name: str | None = None
    limits: Limits


class PlanShown(Shape):
    name: str
    limits: Annotated[list[str], Field(description="Each in its canonical notation.")]


class PlanPage(Shape):
    plans: list[PlanShown]
    next: Next


# -- users ----------------------------------------------------------------------------------------------------------


class EffectiveLimit(Shape):
    """A rule that holds for the user, and its counter."""

    rule: Annotated[str, Field(description="The rule_id.")]
    name: str
    endpoint_pattern: str
    method: str
    tier: str
    algorithm: str
    mode: Literal["enforce", "shadow"]
    window_seconds: float
    expires_at: Moment | None
    limit: Count
    remaining: Count
    current_count: Count
    reset_after: Annotated[float, Field(ge=0, description="Seconds until the counter is as good as new.")]
    state: State


class EffectiveLimits(Shape):
    user_id: str
    tier: str
    limits: list[EffectiveLimit]


class TierBody(Shape):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"tier": "premium"}]})

    tier: Annotated[str | None, Field(description="null takes the user out of any: back to `free`.")]


class UserTier(Shape):
    user_id: str
    tier: str


class Override(Shape):
    """Another limit for one user, for a while. Name the rule, or the slot by its pattern and window."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"rule_id": "orders-per-user", "limit": 500, "duration_seconds": 3600}]},
    )

    rule_id: str | None = None
    endpoint_pattern: str | None = None
    window_seconds: Annotated[float | None, Field(gt=0)] = None
    method: Annotated[str | None, Field(description="Of the slot; `*` unless said. Not beside `rule_id`.")] = None
    limit: Count
    duration_seconds: Annotated[float, Field(gt=0)]


# -- audit and statistics -------------------------------------------------------------------------------------------


class AuditEntryShown(Shape):
    id: str
    at: Moment
    actor: Annotated[str, Field(description="`key:` and the name of the key; `headgate` for what ended by itself.")]
    address: str
    action: Annotated[str, Field(description="create, update, delete, expire or reset.")]
    subject: Annotated[str, Field(description="The kind and the id: `rule:orders-per-user`, `tier:alice`.")]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class AuditPage(Shape):
    entries: Annotated[list[AuditEntryShown], Field(description="The newest first.")]
    next: Annotated[str | None, Field(description="Send it as `before` for the next page; null when this is the last.")]


class Totals(Shape):
    allowed: Count
    denied: Count
    shadowed: Annotated[Count, Field(description="What shadow rules would have denied.")]


class Point(Totals):
    at: Annotated[Moment, Field(description="The begin of the minute or hour.")]


class RuleTotals(Totals):
    rule: str


class SubjectTotals(Shape):
    subject: str
    allowed: Count
    denied: Count


class Stats(Shape):
    since: Moment
    until: Moment
    step: Literal["minute", "hour"]
    rule: str | None
    totals: Totals
    series: Annotated[list[Point], Field(description="What nobody counted in has no point.")]
    rules: Annotated[list[RuleTotals], Field(description="The same by rule, those that denied most first.")]
    top: Annotated[list[SubjectTotals], Field(description="Who asked most, of all rules.")]
