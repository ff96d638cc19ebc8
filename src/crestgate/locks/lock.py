"""Base class of all locks: polling until a lock is free, and releasing it.

Subclasses implement a single attempt to take a lock, its release, and guarded writes.
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

from crestgate.databases.names import short_name
from crestgate.errors import LeaseLostError, StoreClosedError, StoreError
from crestgate.locks.port import LEASE, MAX_LEASE, WAIT, Lease
from crestgate.runtime.backoff import poll

__all__ = ["Locks", "lease_lost"]

T = TypeVar("T")
MIN_LEASE = 0.001
_log = logging.getLogger("crestgate")


class Locks(ABC, Generic[T]):
    """Locks at `address`, which error messages name. See port.py for the guarantees."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.closed = False

    @abstractmethod
    def attempt(self, name: str, holder: str, seconds: float) -> int | None:
        """Try to take the lock for this long; the version of the lease, or None if the lock is held."""

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """Release the lock, unless another lease has it now."""

    @abstractmethod
    def guarded(self, lease: Lease) -> AbstractContextManager[T]:
        """See the port."""

    @contextmanager
    def hold(self, name: str, *, wait: float = WAIT, lease: float = LEASE) -> Iterator[Lease]:
        self.check_open()
        short_name(name)
        if not (wait >= 0 and math.isfinite(wait)):
            raise ValueError(f"wait must be seconds, 0 or more, not {wait!r}")
        if not MIN_LEASE <= lease <= MAX_LEASE:
            raise ValueError(f"lease must be seconds from {MIN_LEASE:g} to {MAX_LEASE:g}, not {lease!r}")
        holder = token_hex(16)
        version = poll(lambda: self.attempt(name, holder, lease), wait)
        if version is None:
            raise TimeoutError(f"lock {name!r} was not free within {wait:g} s ({self.address})")
        held = Lease(name, version, holder)
        try:
            yield held
        finally:
            try:
                self.release(held)
            except StoreError as error:  # the block has succeeded, so this must not raise
                _log.warning("lock release failed, the lock stays until its lease ends: %s", error)

    def close(self) -> None:
        self.closed = True

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosedError(f"{self.address}: these locks were closed; open them again with open_locks")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lease_lost(lease: Lease) -> LeaseLostError:
    return LeaseLostError(
        f"lock {lease.name!r}: the lease of version {lease.version} expired and another holder took the lock, so "
        "nothing was written; take the lock again, read again, and use a longer lease if this happens often"
    )
