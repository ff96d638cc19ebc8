"""The OpenAPI models of `/api/v1/status`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from crestgate.service.admin.models import Count, Model, Timestamp

__all__ = ["ServiceStatus"]

Breaker = Literal["closed", "half-open", "open"]


class WorkerEntry(Model):
    worker: Annotated[Count, Field(description="Its number on this node.")]
    pid: Count
    started_at: Timestamp
    seen_at: Annotated[Timestamp, Field(description="When it last published its state; about every second.")]
    silent: Annotated[bool, Field(description="It has not published for 15 seconds: it is stuck, or has just ended.")]
    policy_decisions_last_minute: Count


class StoreEntry(Model):
    name: Annotated[
        str, Field(description="`default`, `from` and `to` of a migration, a name of `stores`, or `rule_database`.")
    ]
    url: Annotated[str, Field(description="Without passwords.")]
    reachable: Annotated[bool, Field(description="By a probe of this worker, at most a second old.")]
    breaker: Annotated[
        Breaker | None, Field(description="The worst of all servers and workers; null for a store without servers.")
    ]
    last_error: Annotated[str | None, Field(description="Of the probe, or of the last check that failed.")]


class RulesInForce(Model):
    in_force: Count
    unreadable: Annotated[Count, Field(description="Stored records that cannot be used.")]
    sources: Annotated[list[str], Field(description="Files and the rule database, in ascending precedence.")]


class Decisions(Model):
    """Since the service started, of all workers."""

    allowed: Count
    denied: Count
    fail_open: Annotated[Count, Field(description="Allowed because the store did not respond; also in `allowed`.")]


class ServiceStatus(Model):
    version: str
    uptime_seconds: Annotated[float, Field(ge=0, description="Of the oldest worker of this node.")]
    workers_expected: Annotated[Count, Field(description="`server.workers` of the settings.")]
    workers: Annotated[list[WorkerEntry], Field(description="Those that have published; silent ones as well.")]
    decisions: Decisions
    stores: list[StoreEntry]
    rules: RulesInForce
    failure_policy: Annotated[str, Field(description="`on_store_error` of the settings. Rules may have their own.")]
    policy_decides_now: Annotated[
        bool, Field(description="The failure policy decided a check in place of the store in the last 5 seconds.")
    ]
    policy_decisions_last_minute: Annotated[Count, Field(description="Checks that the failure policy decided.")]
