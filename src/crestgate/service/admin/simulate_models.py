"""OpenAPI models of simulations."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from crestgate.service.admin.models import Count, Model, RuleBody

__all__ = ["SimulateBody", "SimulationReport"]

Share = Annotated[float, Field(ge=0, le=1)]
Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
EXAMPLE: JsonDict = {
    "rules": [{"rule_id": "per-user", "dimension": "user", "limit": 50, "window_seconds": 60}],
    "minutes": 15,
}


class SimulateBody(Model):
    """Rules to try."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE]})

    rules: Annotated[
        list[RuleBody],
        Field(max_length=100, description="They replace rules in force of the same rule_id, or are added to them."),
    ]
    minutes: Annotated[int, Field(ge=1, le=60, description="Of recent traffic.")] = 60


class SimulatedRule(Model):
    rule_id: str
    name: str
    dimension: str
    limit: Annotated[str, Field(description="In notation.")]
    requests: Count
    denied: Count
    share_denied: Share
    subjects: Count
    subjects_denied: Count
    newly_denied: Annotated[Count | None, Field(description="Denied by it, and allowed by the rules in force.")] = None
    newly_allowed: Annotated[Count | None, Field(description="Denied by it, and allowed by the changed rules.")] = None


class SimulatedSubject(Model):
    subject: Annotated[str, Field(description="Dimension and identifier; of an API key its digest.")]
    rule_id: str
    requests: Count
    denied: Count
    share_denied: Share
    newly_denied: Count | None = None
    newly_allowed: Count | None = None


class SimulatedPoint(Model):
    at: Timestamp
    requests: Count
    denied: Count
    denied_against: Annotated[Count | None, Field(description="By the rules in force.")] = None


class SimulatedSeries(Model):
    step_seconds: int
    points: list[SimulatedPoint]


class RulesInForce(Model):
    denied: Count
    share_denied: Share
    newly_denied: Annotated[Count, Field(description="Requests that only the changed rules deny.")]
    newly_allowed: Annotated[Count, Field(description="Requests that only the rules in force deny.")]
    rules: list[SimulatedRule]
    subjects: list[SimulatedSubject]


class SimulationReport(Model):
    minutes: int
    recorded_since: Annotated[Timestamp, Field(description="When recording began, in the worker that began last.")]
    share_recorded: Annotated[Share, Field(description="Of the subjects; the numbers are of these alone.")]
    not_recorded: Annotated[Count, Field(description="Requests whose path or identifier is too long to be recorded.")]
    share_replayed: Annotated[Share, Field(description="Of the records; less than 1 where the time was not enough.")]
    workers: Count
    workers_heard: Annotated[Count, Field(description="Workers whose records are in it.")]
    requests: Count
    denied: Annotated[Count, Field(description="By the changed rules.")]
    share_denied: Share
    unmatched: Annotated[Count, Field(description="Requests to which no rule applies.")]
    from_: Annotated[Timestamp | None, Field(alias="from")]
    until: Timestamp | None
    late: Count
    exact_subjects: Annotated[
        bool, Field(description="Whether no subject was dropped from the lists for want of room.")
    ]
    counters_full: bool
    rules: list[SimulatedRule]
    shadow_rules: list[SimulatedRule]
    subjects: list[SimulatedSubject]
    shadow_subjects: list[SimulatedSubject]
    series: SimulatedSeries
    against: RulesInForce
