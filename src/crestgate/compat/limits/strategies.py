"""Rate limiting strategies: `hit`, `test`, `get_window_stats` and `clear` of an item on a storage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, ClassVar, TypeVar

from crestgate.compat.limits.limits import RateLimitItem
from crestgate.compat.limits.storage import Storage, StoreStorage
from crestgate.compat.limits.strategy_steps import (
    FixedWindowSteps,
    MovingWindowSteps,
    SlidingWindowCounterSteps,
    StorageCall,
    StrategySteps,
)
from crestgate.compat.limits.util import WindowStats

__all__ = [
    "STRATEGIES",
    "FixedWindowRateLimiter",
    "MovingWindowRateLimiter",
    "RateLimiter",
    "SlidingWindowCounterRateLimiter",
]

T = TypeVar("T")


class RateLimiter(ABC):
    """Base class of the strategies, and of your own."""

    def __init__(self, storage: Storage) -> None:
        if not isinstance(storage, Storage):
            raise TypeError(
                f"a strategy needs a Storage, not {type(storage).__name__}: async storages go with the strategies of "
                "crestgate.compat.limits.aio.strategies"
            )
        self.storage = storage

    @abstractmethod
    def hit(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        """Consume the cost if it fits into the limit; returns whether it did. The identifiers name what is limited."""

    @abstractmethod
    def test(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        """Whether `hit` would return True now. Consumes nothing."""

    @abstractmethod
    def get_window_stats(self, item: RateLimitItem, *identifiers: str) -> WindowStats:
        """When the window resets, and how many requests are left."""

    def clear(self, item: RateLimitItem, *identifiers: str) -> None:
        """Forget what was consumed."""
        self.storage.clear(item.key_for(*identifiers))


class _WindowRateLimiter(RateLimiter):
    """One of the three strategies. A storage of Crestgate decides each in one step."""

    steps: ClassVar[StrategySteps]

    def __init__(self, storage: Storage) -> None:
        self.steps.require_support(storage)
        super().__init__(storage)

    def hit(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        storage, key = self.storage, item.key_for(*identifiers)
        if isinstance(storage, StoreStorage):
            return storage.take(self.steps.name, key, item.amount, item.get_expiry(), cost)
        return self._run(self.steps.hit(item, key, cost))

    def test(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        storage, key = self.storage, item.key_for(*identifiers)
        if isinstance(storage, StoreStorage):
            return storage.would_admit(self.steps.name, key, item.amount, item.get_expiry(), cost)
        return self._run(self.steps.test(item, key, cost))

    def get_window_stats(self, item: RateLimitItem, *identifiers: str) -> WindowStats:
        storage, key = self.storage, item.key_for(*identifiers)
        if isinstance(storage, StoreStorage):
            return storage.get_window_stats(self.steps.name, key, item.amount, item.get_expiry())
        return self._run(self.steps.stats(item, key))

    def clear(self, item: RateLimitItem, *identifiers: str) -> None:
        self._call(self.steps.clear(item, item.key_for(*identifiers)))

    def _call(self, call: StorageCall) -> Any:
        return getattr(self.storage, call.method)(*call.args, **call.options)

    def _run(self, steps: Generator[StorageCall, Any, T]) -> T:
        try:
            call = next(steps)
            while True:
                call = steps.send(self._call(call))
        except StopIteration as done:
            result: T = done.value
            return result


class FixedWindowRateLimiter(_WindowRateLimiter):
    """So many in each window; windows are aligned to the epoch."""

    steps = FixedWindowSteps()


class MovingWindowRateLimiter(_WindowRateLimiter):
    """So many in any period, exactly."""

    steps = MovingWindowSteps()


class SlidingWindowCounterRateLimiter(_WindowRateLimiter):
    """So many in a period, nearly, with two numbers to a counter."""

    steps = SlidingWindowCounterSteps()


STRATEGIES: dict[str, type[RateLimiter]] = {
    strategy.steps.name: strategy
    for strategy in (SlidingWindowCounterRateLimiter, FixedWindowRateLimiter, MovingWindowRateLimiter)
}
"""The strategies by name."""
