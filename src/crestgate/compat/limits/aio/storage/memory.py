"""Async storage in the memory of this process."""

from __future__ import annotations

from typing import Any

from crestgate.compat.limits.aio.storage.store import StoreStorage
from crestgate.compat.limits.store_handle import PicklableMemory, WallClock
from crestgate.runtime.clock import Clock

__all__ = ["MemoryStorage"]


class MemoryStorage(PicklableMemory, StoreStorage):
    """Counters of this process: at most `max_keys`, exact. It can be pickled, counters included."""

    STORAGE_SCHEME = ["async+memory"]  # noqa: RUF012 - as in limits, also for subclasses

    def __init__(
        self, uri: str | None = None, wrap_exceptions: bool = False, *, clock: Clock | None = None, **options: Any
    ) -> None:
        super().__init__(uri or "async+memory://", wrap_exceptions, clock=clock or WallClock(), **options)
