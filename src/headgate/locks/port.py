"""The port: what a lock service does, and what it promises.

    with locks.hold("client:42", wait=5.0, lease=10.0) as lease:
        ...                                             # read, think
        with locks.guarded(lease) as transaction:
            ...                                         # write, or LeaseLost and nothing is written

A lock is held for a lease: so long at most does a holder that died, or was stopped, keep the others out. Hence a
lock alone cannot promise that nobody else holds it: a holder may be stopped at any place, and go on after its
lease. What it writes is therefore checked: each taking has a version, and `guarded` writes only if it is the last.

Exclusion   At most one holder at a time, as long as no holder outstays its lease. Not fair: who asks at the right
            moment gets it. Not re-entrant: who holds a lock and takes it again waits for itself, until TimeoutError.
Versions    Every taking of a lock has a higher version than all before it: at least the one before plus 1, and at
            least the clock in microseconds, so that versions grow even after the one before was forgotten.
Writes      `guarded` compares and writes in one step that nobody comes between. The version alone decides: a lease
            that has ended still writes as long as nobody has taken the lock since, because then nothing has changed.
Clock       That of the database or Redis server, or this machine's monotonic one: two clocks are never compared.
Errors      TimeoutError when the lock was not free in time, LeaseLost when another has taken it since, StoreError
            when the other side is away or fails. A StoreError while `guarded` ends says whether the write is in doubt.
Threads     All methods may be called from any thread. They wait, so an event loop calls them in a thread.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeVar

__all__ = ["LEASE", "MOST_LEASE", "WAIT", "Lease", "LockService"]

T_co = TypeVar("T_co", covariant=True)

WAIT = 5.0
LEASE = 10.0
MOST_LEASE = 3600.0
"""Seconds. What seems to be held for longer was written before the clock was set back, and is not believed."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One taking of one lock. `version` grows with every taking; `holder` is a random name that nobody else has."""

    name: str
    version: int
    holder: str


class LockService(Protocol[T_co]):
    """Locks by name. See the module for what it promises; what `guarded` gives depends on what keeps the locks."""

    def hold(self, name: str, *, wait: float = WAIT, lease: float = LEASE) -> AbstractContextManager[Lease]:
        """Take the lock within `wait` seconds, and give it back at the end of the block if it is still one's own."""

    def guarded(self, lease: Lease) -> AbstractContextManager[T_co]:
        """Write what the block says when it ends well, unless another has taken the lock since: then LeaseLost."""

    def close(self) -> None:
        """Let go of connections. Closing twice is fine; taking a lock afterwards is a StoreClosed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
