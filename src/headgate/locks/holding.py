"""What all locks have in common: asking until one is free, and giving back what is still one's own.

Whatever keeps the locks only has to say how one is taken and given back, each in a single try, and how a write is
guarded.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from secrets import token_hex
from types import TracebackType
from typing import Generic, Self, TypeVar

from headgate.errors import LeaseLost, StoreClosed, StoreError
from headgate.locks.names import short_name
from headgate.locks.polling import poll
from headgate.locks.port import LEASE, MOST_LEASE, WAIT, Lease

__all__ = ["Locks", "lost"]

T = TypeVar("T")
LEAST_LEASE = 0.001
_log = logging.getLogger("headgate")


class Locks(ABC, Generic[T]):
    """Locks kept at `address`, which is where people look when something is wrong. See port.py for the promises."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.closed = False

    @abstractmethod
    def attempt(self, name: str, holder: str, seconds: float) -> int | None:
        """Take the lock now, for so long; the version of this taking, or None when somebody else has it."""

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """Free the lock, unless it is no longer this lease's."""

    @abstractmethod
    def guarded(self, lease: Lease) -> AbstractContextManager[T]:
        """See the port."""

    @contextmanager
    def hold(self, name: str, *, wait: float = WAIT, lease: float = LEASE) -> Iterator[Lease]:
        self.check_open()
        short_name(name)
        if not (wait >= 0 and math.isfinite(wait)):
            raise ValueError(f"wait must be seconds, 0 or more, not {wait!r}")
        if not LEAST_LEASE <= lease <= MOST_LEASE:
            raise ValueError(f"lease must be seconds from {LEAST_LEASE:g} to {MOST_LEASE:g}, not {lease!r}")
        holder = token_hex(16)
        version = poll(lambda: self.attempt(name, holder, lease), wait)
        if version is None:
            raise TimeoutError(f"lock {name!r} was not free within {wait:g} s ({self.address})")
        taken = Lease(name, version, holder)
        try:
            yield taken
        finally:
            try:
                self.release(taken)
            except StoreError as error:  # what the block did is done: to fail now would say that it was not
                _log.warning("a lock could not be given back, and stays until its lease ends: %s", error)

    def close(self) -> None:
        self.closed = True

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosed(f"{self.address}: these locks were closed; open them again with open_locks")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lost(lease: Lease) -> LeaseLost:
    return LeaseLost(
        f"lock {lease.name!r}: the lease of version {lease.version} ran out and another has taken the lock since, so "
        "nothing was written; take the lock again, read again, and ask for a longer lease if this happens often"
    )
