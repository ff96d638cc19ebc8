"""Async storage on any store of Crestgate. Those for memory and Redis are subclasses of it."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from crestgate.compat.limits import operations
from crestgate.compat.limits.aio.storage.base import (
    MovingWindowSupport,
    SlidingWindowCounterSupport,
    Storage,
    wrap_errors,
)
from crestgate.compat.limits.operations import MOVING_WINDOW, SLIDING_WINDOW_COUNTER, STRATEGY_NAMES
from crestgate.compat.limits.storage_support import TimestampedSlidingWindow, wrap_methods
from crestgate.compat.limits.store_handle import StoreHandle
from crestgate.compat.limits.store_url import STORE_SCHEMES, from_limits
from crestgate.compat.limits.util import WindowStats
from crestgate.errors import StoreError
from crestgate.runtime.clock import Clock

__all__ = ["StoreStorage"]


class StoreStorage(Storage, MovingWindowSupport, SlidingWindowCounterSupport, TimestampedSlidingWindow):
    """An async storage on the store of a URL. When the store fails, StoreError is raised."""

    STORAGE_SCHEME: ClassVar[list[str] | None] = [f"async+{scheme}" for scheme in STORE_SCHEMES]

    def __init__(self, uri: str, wrap_exceptions: bool = False, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions)
        self.handle = StoreHandle(from_limits(uri, **options), clock)

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        return StoreError

    async def take(self, strategy: str, key: str, amount: int, expiry: int, cost: int) -> bool:
        """What a strategy's `hit` calls: count the cost if it fits. A denied hit costs nothing."""
        return await self.handle.run_async(operations.take(strategy, key, amount, expiry, cost))

    async def would_admit(self, strategy: str, key: str, amount: int, expiry: int, cost: int) -> bool:
        """What a strategy's `test` calls."""
        return await self.handle.run_async(operations.would_admit(strategy, key, amount, expiry, cost))

    async def get_window_stats(self, strategy: str, key: str, amount: int, expiry: int) -> WindowStats:
        """What a strategy's `get_window_stats` calls."""
        return await self.handle.run_async(
            operations.get_window_stats(strategy, key, amount, expiry, self.handle.clock)
        )

    async def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        return await self.handle.run_async(operations.increment(key, expiry, amount))

    async def get(self, key: str) -> int:
        return await self.handle.run_async(operations.get_used(key))

    async def get_expiry(self, key: str) -> float:
        return await self.handle.run_async(operations.get_expiry(key, self.handle.clock))

    async def check(self) -> bool:
        try:
            await self.handle.run_async(operations.probe(self.handle.probe_keys()))
        except StoreError:
            return False
        return True

    async def reset(self) -> int | None:
        return await asyncio.to_thread(self.handle.delete_all)

    async def clear(self, key: str) -> None:
        await self.handle.run_async(operations.clear(key, *STRATEGY_NAMES))

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return await self.take(MOVING_WINDOW, key, limit, expiry, amount)

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return await self.handle.run_async(operations.get_moving_window(key, limit, expiry, self.handle.clock))

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return await self.take(SLIDING_WINDOW_COUNTER, key, limit, expiry, amount)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        return await self.handle.run_async(operations.get_sliding_window(key, expiry))

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        await self.handle.run_async(operations.clear(key, SLIDING_WINDOW_COUNTER))

    async def aclose(self) -> None:
        """Close the store: files and connections. `limits` has no such method."""
        await self.handle.aclose()


wrap_methods(StoreStorage, ("take", "would_admit", "get_window_stats"), wrap_errors)
