"""The shapes of the data plane's JSON. Apart from what is done with them, which is compiled, as these cannot be.

`gc=False` where a batch may have thousands: none of them refers back to itself, so the collector need not look."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

__all__ = [
    "Answer",
    "BatchBody",
    "CheckBody",
    "ContextBody",
    "Counter",
    "CounterBody",
    "Counters",
    "Mistake",
    "VerifyBody",
]

Name = Annotated[str, msgspec.Meta(min_length=1)]


class ContextBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True, gc=False):
    """The request that a check is about, in the words of the library's RequestContext."""

    ip: Name | None = None
    user: Name | None = None
    api_key: Name | None = None
    client: Name | None = None
    path: str | None = None
    method: Name | None = None
    tier: Name | None = None
    key: Name | None = None


class CounterBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True, gc=False):
    """One counter that a check names itself: a key under a limit, or under a plan."""

    key: str
    name: str | None = None
    limit: str | None = None
    plan: str | None = None
    cost: int = 1
    binds: bool = True
    tick: int = 0
    amount: int = 0
    token: str | None = None
    """Of `give_back` and `charge`: what the answer to the take said."""


class CheckBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One check. Which of its fields belong together is for `prepare` to say."""

    dimension: str | None = None
    identifier: str | None = None
    endpoint: str | None = None
    method: str | None = None
    context: ContextBody | None = None
    key: str | None = None
    plans: list[str] | None = None
    cost: int | UnsetType = UNSET
    """1 unless said. It is often said, so whether it was must be known: see service/duplicates.py."""
    timestamp: float | None = None
    op: str | None = None
    """In a batch: what is to be done, if it is not to take."""
    counters: list[CounterBody] | None = None
    """In a batch."""


class BatchBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    checks: list[CheckBody]
    exact: bool = False
    """Whether the answers are to be `Counters`, and a check with a mistake in it is to have an answer of its own."""


class VerifyBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A check in the words of the client family."""

    clientId: Name  # noqa: N815 - as it is spelled
    apiName: str | None = None  # noqa: N815
    methodName: Name | None = None  # noqa: N815


class Answer(msgspec.Struct, gc=False):
    """The numbers of one decision, or of one of its parts."""

    allowed: bool
    limit: int
    remaining: int
    current_count: int
    reset_at: int
    """Unix seconds, rounded up."""
    reset_after: float
    retry_after: float | None
    """Seconds; null when allowed, and when no waiting helps."""
    reason: str
    rule: str | None
    state: str
    delay: float
    queue_position: int | UnsetType = UNSET
    parts: list[Answer] | UnsetType = UNSET
    shadows: list[Answer] | UnsetType = UNSET


class Counter(msgspec.Struct, omit_defaults=True, gc=False):
    """One counter in whole numbers; microseconds where it is time."""

    allowed: bool
    remaining: int
    wait: int | None
    """Of a denied request until it would pass, null for never; of an admitted one the units queued before it."""
    reset: int
    reason: str
    tick: int
    """What `give_back` is to name."""
    token: str | UnsetType = UNSET
    """What `give_back` and `charge` are to show; of counters that were charged."""
    at: int | UnsetType = UNSET
    """Which of the counters that the check has named it is for."""
    key: str | UnsetType = UNSET
    """This and what follows is told where the check has not said it itself."""
    name: str | UnsetType = UNSET
    label: str | UnsetType = UNSET
    limit: str | UnsetType = UNSET
    binds: bool | UnsetType = UNSET


class Counters(msgspec.Struct):
    """All counters that one check has looked at; none where no rule applies."""

    counters: list[Counter]


class Mistake(msgspec.Struct):
    """Why one check of a batch was not decided: a problem, as everywhere."""

    error: dict[str, Any]
