"""The strategies on storages that a program brings along: which of its methods to call, without calling them.

Each function is a generator: it yields a call of the storage, is sent the result, and returns its own. So sync and
async strategies share it. Crestgate's own storages decide a strategy in one step, and need none of this.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from math import floor
from typing import Any, NamedTuple, TypeAlias

from crestgate.compat.limits.limits import RateLimitItem
from crestgate.compat.limits.operations import FIXED_WINDOW, MOVING_WINDOW, SLIDING_WINDOW_COUNTER
from crestgate.compat.limits.util import WindowStats

__all__ = ["FixedWindowSteps", "MovingWindowSteps", "SlidingWindowCounterSteps", "StorageCall", "StrategySteps"]


class StorageCall(NamedTuple):
    """A method of a storage, and its arguments."""

    method: str
    args: tuple[Any, ...]
    options: Mapping[str, int] = {}


BoolSteps: TypeAlias = Generator[StorageCall, Any, bool]
StatsSteps: TypeAlias = Generator[StorageCall, Any, WindowStats]


class StrategySteps:
    """One strategy."""

    name: str
    methods: tuple[str, ...] = ()
    """What a storage must have for it."""

    def require_support(self, storage: object) -> None:
        """NotImplementedError if a storage lacks a method."""
        missing = [name for name in self.methods if not hasattr(storage, name)]
        if missing:
            raise NotImplementedError(
                f"the strategy {self.name} is not implemented for storages of type {type(storage).__name__}: they have "
                f"no {' and no '.join(missing)}"
            )

    def hit(self, item: RateLimitItem, key: str, cost: int) -> BoolSteps:
        raise NotImplementedError

    def test(self, item: RateLimitItem, key: str, cost: int) -> BoolSteps:
        raise NotImplementedError

    def stats(self, item: RateLimitItem, key: str) -> StatsSteps:
        raise NotImplementedError

    def clear(self, item: RateLimitItem, key: str) -> StorageCall:
        return StorageCall("clear", (key,))


class FixedWindowSteps(StrategySteps):
    """Counts in windows of one period. A storage of `limits` counts denied hits, too."""

    name = FIXED_WINDOW

    def hit(self, item: RateLimitItem, key: str, cost: int) -> BoolSteps:
        count: int = yield StorageCall("incr", (key, item.get_expiry()), {"amount": cost})
        return count <= item.amount

    def test(self, item: RateLimitItem, key: str, cost: int) -> BoolSteps:
        count: int = yield StorageCall("get", (key,))
        return count + cost <= item.amount

    def stats(self, item: RateLimitItem, key: str) -> StatsSteps:
        count: int = yield StorageCall("get", (key,))
        reset_time: float = yield StorageCall("get_expiry", (key,))
        return WindowStats(reset_time, max(item.amount - count, 0))


class MovingWindowSteps(StrategySteps):
    """Counts the requests of the last period, each with its time."""

    name = MOVING_WINDOW
    methods = ("acquire_entry", "get_moving_window")

    def hit(self, item: RateLimitItem, key: str, cost: int) -> BoolSteps:
        admitted = yield StorageCall("acquire_entry", (key, item.amount, item.get_expiry()), {"amount": cost})
        return bool(admitted)

    def test(self, item: RateLimitItem, key: str, cost: int) -> BoolSteps:
        _, count = yield StorageCall("get_moving_window", (key, item.amount, item.get_expiry()))
        return bool(count + cost <= item.amount)

    def stats(self, item: RateLimitItem, key: str) -> StatsSteps:
        start, count = yield StorageCall("get_moving_window", (key, item.amount, item.get_expiry()))
        return WindowStats(start + item.get_expiry(), item.amount - count)


class SlidingWindowCounterSteps(StrategySteps):
    """Counts in two adjacent windows, the older one weighted by its overlap with the last period."""

    name = SLIDING_WINDOW_COUNTER
    methods = ("acquire_sliding_window_entry", "get_sliding_window")

    def hit(self, item: RateLimitItem, key: str, cost: int) -> BoolSteps:
        admitted = yield StorageCall("acquire_sliding_window_entry", (key, item.amount, item.get_expiry(), cost))
        return bool(admitted)

    def test(self, item: RateLimitItem, key: str, cost: int) -> BoolSteps:
        windows = yield StorageCall("get_sliding_window", (key, item.get_expiry()))
        return _weighted_count(item, windows) + cost <= item.amount

    def stats(self, item: RateLimitItem, key: str) -> StatsSteps:
        period = item.get_expiry()
        windows = yield StorageCall("get_sliding_window", (key, period))
        previous, previous_ttl, current, current_ttl = windows
        waits = []
        if previous:
            waits.append(previous_ttl % (period / previous))  # until its weight falls by one request
        if current:
            waits.append(current_ttl % period)
        return WindowStats(time.time() + min(waits, default=0.0), max(item.amount - _weighted_count(item, windows), 0))

    def clear(self, item: RateLimitItem, key: str) -> StorageCall:
        return StorageCall("clear_sliding_window", (key, item.get_expiry()))


def _weighted_count(item: RateLimitItem, windows: tuple[int, float, int, float]) -> int:
    previous, previous_ttl, current, _ = windows
    return floor(previous * previous_ttl / item.get_expiry() + current)
