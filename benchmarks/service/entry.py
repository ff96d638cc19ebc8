"""The contenders: servers with their settings, and the requests sent to them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BATCH", "CONTESTS", "FORMS", "SETTINGS", "USERS", "Contest", "Entry", "Served", "bodies"]

USERS = 1_000
BATCH = 100
PLENTY = 1_000_000
CEILING = "1000000000/second"
"""Of checks that a node answers: the usual 100,000 a second would refuse batches. What a single check costs is the same
with both, since a worker takes its share of either in portions of 1,000."""
SETTINGS: dict[str, Any] = {
    "rules": [
        {
            "rule_id": "orders",
            "dimension": "user",
            "endpoint_pattern": "/api/v1/orders",
            "limit": PLENTY,
            "window_seconds": 60,
        }
    ],
    "default_policy": {"type": "TOKEN_BUCKET", "capacity": PLENTY, "refillRate": PLENTY},
    "server": {"limits": {"checks": CEILING}},
}
CHECK, CHECKS = "/api/v1/check", "/api/v1/check/batch"
FORMS = ("rule", "key", "batch")
"""What the bodies are: a check of a user under a rule, of a key under its policy, or many of the first kind."""


@dataclass(frozen=True)
class Served:
    """A server: the service with these settings beside those of all, or the echo."""

    name: str
    echo: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs_key: bool = False
    on_redis: bool = False

    def written(self, redis_url: str) -> dict[str, Any]:
        """Its settings as written to its file."""
        server = SETTINGS["server"] | ({"checks": "key"} if self.needs_key else {})
        store = {"store": redis_url} if self.on_redis else {}
        return {**SETTINGS, **self.settings, **store, "server": server}


@dataclass(frozen=True)
class Entry:
    """A kind of request that is sent to a server repeatedly."""

    label: str
    served: str
    path: str = CHECK
    form: str = "rule"
    decisions: int = 1
    fresh: bool = False
    """Whether every request has an idempotency key of its own."""
    why: str = ""
    """What it shows, for entries that are compared with the plain check."""


@dataclass(frozen=True)
class Contest:
    """All contenders, with a number of workers each. The first is the echo, the second the plain check."""

    workers: int
    servers: tuple[Served, ...]
    entries: tuple[Entry, ...]


PLAIN = (Served("echo", echo=True), Served("plain"))
SIDE_BY_SIDE = (
    Entry("echo", "echo", "/"),
    Entry("check, by rule", "plain"),
    Entry("check, by key and policy", "plain", form="key"),
    Entry(f"batch of {BATCH}", "plain", CHECKS, "batch", BATCH),
)
COSTS = (
    Entry("with a key", "key", why="checks need a key, which every request carries (`server: {checks: key}`)"),
    Entry("with a log line each", "logged", why="`logs: {requests: all}`, into a file"),
    Entry("with idempotency keys", "repeats", fresh=True, why="every check carries a fresh one, and is kept"),
    Entry("counters in memory://", "memory", why="one process's own, in place of shared memory"),
    Entry("counters in Redis", "redis", why="a Redis on loopback, in place of shared memory"),
)
VARIANTS = (
    Served("key", needs_key=True),
    Served("logged", settings={"logs": {"requests": "all", "format": "json"}}),
    Served("repeats"),
    Served("memory", settings={"store": "memory://"}),
    Served("redis", on_redis=True),
)
CONTESTS = (
    Contest(1, (*PLAIN, *VARIANTS), (*SIDE_BY_SIDE, *COSTS)),
    Contest(2, PLAIN, SIDE_BY_SIDE),
)


def bodies(form: str) -> Iterator[str]:
    """The request bodies in rotation: a thousand users, one by one or a hundred in a batch."""
    if form == "batch":
        checks = [_by_rule(user) for user in range(USERS)]
        for first in range(0, USERS, BATCH):
            yield _compact({"checks": checks[first : first + BATCH]})
        return
    for user in range(USERS):
        yield _compact(_by_rule(user) if form == "rule" else {"key": f"user:{user}", "cost": 1})


def _by_rule(user: int) -> dict[str, Any]:
    return {"dimension": "USER", "identifier": str(user), "endpoint": "/api/v1/orders", "method": "GET", "cost": 1}


def _compact(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"))
