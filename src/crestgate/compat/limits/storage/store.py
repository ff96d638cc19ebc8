"""Storage on any store of Crestgate. Those for memory and Redis are subclasses of it."""

from __future__ import annotations

from typing import Any, ClassVar

from crestgate.compat.limits import operations
from crestgate.compat.limits.operations import MOVING_WINDOW, SLIDING_WINDOW_COUNTER, STRATEGY_NAMES
from crestgate.compat.limits.storage.base import (
    MovingWindowSupport,
    SlidingWindowCounterSupport,
    Storage,
    TimestampedSlidingWindow,
    wrap_errors,
)
from crestgate.compat.limits.storage_support import wrap_methods
from crestgate.compat.limits.store_handle import StoreHandle
from crestgate.compat.limits.store_url import STORE_SCHEMES, from_limits
from crestgate.compat.limits.util import WindowStats
from crestgate.errors import StoreError
from crestgate.runtime.clock import Clock

__all__ = ["StoreStorage"]


class StoreStorage(Storage, MovingWindowSupport, SlidingWindowCounterSupport, TimestampedSlidingWindow):
    """A storage on the store of a URL. When the store fails, StoreError is raised."""

    STORAGE_SCHEME: ClassVar[list[str] | None] = [*STORE_SCHEMES]

    def __init__(self, uri: str, wrap_exceptions: bool = False, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions)
        self.handle = StoreHandle(from_limits(uri, **options), clock)

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        return StoreError

    def take(self, strategy: str, key: str, amount: int, expiry: int, cost: int) -> bool:
        """What a strategy's `hit` calls: count the cost if it fits. A denied hit costs nothing."""
        return self.handle.run(operations.take(strategy, key, amount, expiry, cost))

    def would_admit(self, strategy: str, key: str, amount: int, expiry: int, cost: int) -> bool:
        """What a strategy's `test` calls."""
        return self.handle.run(operations.would_admit(strategy, key, amount, expiry, cost))

    def get_window_stats(self, strategy: str, key: str, amount: int, expiry: int) -> WindowStats:
        """What a strategy's `get_window_stats` calls."""
        return self.handle.run(operations.get_window_stats(strategy, key, amount, expiry, self.handle.clock))

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        return self.handle.run(operations.increment(key, expiry, amount))

    def get(self, key: str) -> int:
        return self.handle.run(operations.get_used(key))

    def get_expiry(self, key: str) -> float:
        return self.handle.run(operations.get_expiry(key, self.handle.clock))

    def check(self) -> bool:
        try:
            self.handle.run(operations.probe(self.handle.probe_keys()))
        except StoreError:
            return False
        return True

    def reset(self) -> int | None:
        return self.handle.delete_all()

    def clear(self, key: str) -> None:
        self.handle.run(operations.clear(key, *STRATEGY_NAMES))

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return self.take(MOVING_WINDOW, key, limit, expiry, amount)

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return self.handle.run(operations.get_moving_window(key, limit, expiry, self.handle.clock))

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return self.take(SLIDING_WINDOW_COUNTER, key, limit, expiry, amount)

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        return self.handle.run(operations.get_sliding_window(key, expiry))

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        self.handle.run(operations.clear(key, SLIDING_WINDOW_COUNTER))

    def close(self) -> None:
        """Close the store: files and connections. `limits` has no such method."""
        self.handle.close()


wrap_methods(StoreStorage, ("take", "would_admit", "get_window_stats"), wrap_errors)
