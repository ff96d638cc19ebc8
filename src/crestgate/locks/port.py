"""Port of lock services, and their guarantees.

    with locks.hold("client:42", wait=5.0, lease=10.0) as lease:
        ...                                             # read and compute
        with locks.guarded(lease) as transaction:
            ...                                         # write, or LeaseLostError and nothing is written

A lock is held for a lease: a holder that died, or was stopped, blocks others no longer than that. Hence a lock alone
cannot guarantee exclusion: a holder may be stopped anywhere, and continue after its lease. So writes are fenced: each
lease has a version, and `guarded` writes only if it is the latest.

Exclusion   At most one holder at a time, as long as no holder exceeds its lease. Not fair: waiters poll. Not
            re-entrant: a holder that takes its lock again waits for itself, until TimeoutError.
Versions    Every lease has a higher version than all before it: at least the one before plus 1, and at least the
            clock in microseconds, so that versions grow even after the record of the one before has expired.
Writes      `guarded` compares and writes atomically. Only the version counts: an expired lease still writes if the
            lock was not taken since.
Clock       That of the database or Redis server, or this machine's monotonic one: two clocks are never compared.
Errors      TimeoutError when the lock was not free in time, LeaseLostError when another has taken it since, StoreError
            when the server is unavailable or fails. A StoreError at the end of `guarded` says if the result is unknown.
Threads     All methods may be called from any thread. They block, so an event loop calls them in a thread.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeVar

__all__ = ["LEASE", "MAX_LEASE", "WAIT", "Lease", "LockService"]

T_co = TypeVar("T_co", covariant=True)

WAIT = 5.0
LEASE = 10.0
MAX_LEASE = 3600.0
"""Seconds. A lock that expires later than this was written before the clock was set back, and counts as free."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease of one lock. `version` grows with every lease; `holder` is a random token."""

    name: str
    version: int
    holder: str


class LockService(Protocol[T_co]):
    """Locks by name. What `guarded` yields depends on the kind of locks."""

    def hold(self, name: str, *, wait: float = WAIT, lease: float = LEASE) -> AbstractContextManager[Lease]:
        """Take the lock within `wait` seconds, and release it at the end of the block if it is still held."""

    def guarded(self, lease: Lease) -> AbstractContextManager[T_co]:
        """Commit the block's writes; LeaseLostError, and nothing is written, if the lock was taken since."""

    def close(self) -> None:
        """Close connections. Closing twice is fine; taking a lock afterwards is a StoreClosedError."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
