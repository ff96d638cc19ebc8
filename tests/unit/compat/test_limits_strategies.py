"""The strategies of `crestgate.compat.limits`, in memory and on virtual time, sync and async."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from crestgate.compat.limits import (
    RateLimitItemPerMinute,
    RateLimitItemPerSecond,
    RateLimitItemPerYear,
    WindowStats,
    aio,
    parse,
)
from crestgate.compat.limits.errors import ConfigurationError
from crestgate.compat.limits.storage import MemoryStorage, Storage, storage_from_string
from crestgate.compat.limits.strategies import (
    STRATEGIES,
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    RateLimiter,
    SlidingWindowCounterRateLimiter,
)
from crestgate.testing import FakeClock

START = 1_700_000_040  # a full minute
NAMES = ["fixed-window", "moving-window", "sliding-window-counter"]


class Strategy:
    """A strategy, called in the same way whether it is sync or async."""

    def __init__(self, name: str, is_async: bool, clock: FakeClock) -> None:
        strategies: Any = aio.strategies.STRATEGIES if is_async else STRATEGIES
        storage = (aio.storage.MemoryStorage if is_async else MemoryStorage)(clock=clock)
        self.limiter = strategies[name](storage)
        self.is_async = is_async

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.limiter, name)
        return (lambda *args, **options: asyncio.run(method(*args, **options))) if self.is_async else method


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(params=[f"{name} {kind}" for name in NAMES for kind in ("sync", "async")])
def strategy(request: pytest.FixtureRequest, clock: FakeClock) -> Strategy:
    name, kind = request.param.split()
    return Strategy(name, kind == "async", clock)


def test_hits_are_admitted_up_to_the_amount(strategy: Strategy) -> None:
    limit = parse("3/minute")
    assert [strategy.hit(limit, "user", "42") for _ in range(5)] == [True, True, True, False, False]
    assert strategy.hit(limit, "user", "43")


def test_denied_hit_costs_nothing(strategy: Strategy) -> None:
    limit = parse("10/minute")
    assert strategy.hit(limit, "user", cost=8)
    assert not strategy.hit(limit, "user", cost=3)
    assert strategy.get_window_stats(limit, "user").remaining == 2
    assert strategy.hit(limit, "user", cost=2)


def test_cost_above_the_amount_is_denied(strategy: Strategy) -> None:
    limit = parse("10/minute")
    assert not strategy.hit(limit, "user", cost=11)
    assert not strategy.test(limit, "user", cost=11)
    assert strategy.get_window_stats(limit, "user").remaining == 10


def test_test_consumes_nothing(strategy: Strategy) -> None:
    limit = parse("2/minute")
    assert [strategy.test(limit, "user") for _ in range(3)] == [True, True, True]
    assert strategy.hit(limit, "user")
    assert strategy.test(limit, "user")
    assert not strategy.test(limit, "user", cost=2)
    assert strategy.hit(limit, "user")
    assert not strategy.test(limit, "user")


def test_clear_forgets_one_key(strategy: Strategy) -> None:
    limit = parse("1/minute")
    assert strategy.hit(limit, "a")
    assert strategy.hit(limit, "b")
    strategy.clear(limit, "a")
    assert strategy.hit(limit, "a")
    assert not strategy.hit(limit, "b")


def test_limit_recovers(strategy: Strategy, clock: FakeClock) -> None:
    limit = parse("2 per 30 seconds")
    assert strategy.hit(limit, cost=2)
    clock.advance(60)
    assert strategy.hit(limit, cost=2)


def test_limit_of_zero_blocks(strategy: Strategy) -> None:
    limit = RateLimitItemPerSecond(0)
    assert not strategy.hit(limit)
    assert not strategy.test(limit)
    assert strategy.get_window_stats(limit).remaining == 0


def test_negative_cost_is_an_error(strategy: Strategy) -> None:
    with pytest.raises(ValueError, match="cost must be a whole number"):
        strategy.hit(parse("5/minute"), "user", cost=-1)


def test_key_of_any_length_has_a_counter_of_its_own(strategy: Strategy) -> None:
    limit = parse("1/minute")
    assert strategy.hit(limit, "x" * 5000, "a")
    assert strategy.hit(limit, "x" * 5000, "b")
    assert not strategy.hit(limit, "x" * 5000, "a")


def test_limit_that_cannot_be_counted_exactly_is_a_configuration_error(clock: FakeClock) -> None:
    limiter = SlidingWindowCounterRateLimiter(MemoryStorage(clock=clock))
    with pytest.raises(ConfigurationError, match="too large to count exactly"):
        limiter.hit(RateLimitItemPerYear(10**12, 100))


def test_fixed_window_is_aligned_to_the_epoch(clock: FakeClock) -> None:
    limiter = FixedWindowRateLimiter(MemoryStorage(clock=clock))
    limit = RateLimitItemPerMinute(2)
    clock.advance(50)
    assert limiter.get_window_stats(limit) == WindowStats(START + 50, 2)
    assert limiter.hit(limit, cost=2)
    assert limiter.get_window_stats(limit) == WindowStats(START + 60, 0)
    clock.advance(10)
    assert limiter.hit(limit)


def test_moving_window_resets_when_its_oldest_hit_expires(clock: FakeClock) -> None:
    limiter = MovingWindowRateLimiter(MemoryStorage(clock=clock))
    limit = RateLimitItemPerMinute(5)
    assert limiter.get_window_stats(limit) == WindowStats(START + 60, 5)
    limiter.hit(limit)
    clock.advance(20)
    limiter.hit(limit, cost=2)
    assert limiter.get_window_stats(limit) == WindowStats(START + 60, 2)
    clock.advance(40)
    assert limiter.get_window_stats(limit) == WindowStats(START + 80, 3)


def test_sliding_window_counter_resets_when_one_more_fits(clock: FakeClock) -> None:
    limiter = SlidingWindowCounterRateLimiter(MemoryStorage(clock=clock))
    limit = RateLimitItemPerMinute(10)
    assert limiter.get_window_stats(limit) == WindowStats(START, 10)
    limiter.hit(limit, cost=6)
    reset_time, remaining = limiter.get_window_stats(limit)
    assert (round(reset_time, 3), remaining) == (START + 60, 4)
    clock.advance(65)
    reset_time, remaining = limiter.get_window_stats(limit)  # 5.5 weighted requests: 5 count
    assert (round(reset_time, 3), remaining) == (START + 70, 5)


def test_time_that_a_test_moves_moves_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As freezegun and hiro do."""
    now = [1_700_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    limiter = MovingWindowRateLimiter(storage_from_string("memory://"))
    limit = RateLimitItemPerMinute(1)
    assert [limiter.hit(limit), limiter.hit(limit)] == [True, False]
    now[0] += 60
    assert limiter.hit(limit)


@pytest.mark.parametrize("name", NAMES)
def test_threads_together_get_the_amount(name: str) -> None:
    limiter = STRATEGIES[name](MemoryStorage(clock=FakeClock(START)))
    limit = RateLimitItemPerMinute(50)
    admitted: list[bool] = []

    def hit() -> None:
        admitted.extend(limiter.hit(limit, "key") for _ in range(40))

    threads = [threading.Thread(target=hit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 50


class CountingStorage(Storage):
    """A storage of a program's own, as simple as one can be."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.counts: dict[str, int] = {}

    @property
    def base_exceptions(self) -> type[Exception]:
        return KeyError

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        self.counts[key] = self.counts.get(key, 0) + amount
        return self.counts[key]

    def get(self, key: str) -> int:
        return self.counts.get(key, 0)

    def get_expiry(self, key: str) -> float:
        return 4711.0

    def check(self) -> bool:
        return True

    def reset(self) -> int | None:
        return None

    def clear(self, key: str) -> None:
        self.counts.pop(key, None)


class WindowStorage(CountingStorage):
    """The same with the methods of the other two strategies."""

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return self.incr(key, expiry, amount) <= limit

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return 1000.0, self.get(key)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return self.incr(key, expiry, amount) <= limit

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        return 3, expiry / 2, self.get(key), 1.5 * expiry

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        self.clear(key)


def test_fixed_window_on_a_storage_of_ones_own() -> None:
    limiter = FixedWindowRateLimiter(CountingStorage())
    limit = RateLimitItemPerMinute(2)
    assert [limiter.hit(limit), limiter.test(limit), limiter.hit(limit), limiter.test(limit)] == [
        True,
        True,
        True,
        False,
    ]
    assert limiter.get_window_stats(limit) == WindowStats(4711.0, 0)
    limiter.clear(limit)
    assert limiter.get_window_stats(limit).remaining == 2


def test_moving_window_on_a_storage_of_ones_own() -> None:
    limiter = MovingWindowRateLimiter(WindowStorage())
    limit = RateLimitItemPerMinute(3)
    assert limiter.hit(limit, cost=2)
    assert [limiter.test(limit), limiter.test(limit, cost=2)] == [True, False]
    assert limiter.get_window_stats(limit) == WindowStats(1060.0, 1)


def test_sliding_window_counter_on_a_storage_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    limiter = SlidingWindowCounterRateLimiter(WindowStorage())
    limit = RateLimitItemPerMinute(5)
    assert limiter.hit(limit, cost=2)
    assert [limiter.test(limit, cost=2), limiter.test(limit, cost=3)] == [True, False]  # 3 · ½ + 2 are used
    assert limiter.get_window_stats(limit) == WindowStats(1010.0, 2)
    limiter.clear(limit)
    assert limiter.get_window_stats(limit).remaining == 4


def test_storage_without_the_methods_of_a_strategy_is_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"moving-window is not implemented .* CountingStorage"):
        MovingWindowRateLimiter(CountingStorage())
    with pytest.raises(NotImplementedError, match="no acquire_sliding_window_entry"):
        SlidingWindowCounterRateLimiter(CountingStorage())


def test_sync_and_async_are_not_mixed() -> None:
    with pytest.raises(TypeError, match=r"limits\.aio\.strategies"):
        FixedWindowRateLimiter(storage_from_string("async+memory://"))
    with pytest.raises(TypeError, match="async strategy needs an async Storage"):
        aio.strategies.FixedWindowRateLimiter(storage_from_string("memory://"))


def test_strategy_of_ones_own() -> None:
    class EverySecond(RateLimiter):
        def hit(self, item: Any, *identifiers: str, cost: int = 1) -> bool:
            return self.storage.incr(item.key_for(*identifiers), 60) % 2 == 0

        def test(self, item: Any, *identifiers: str, cost: int = 1) -> bool:
            return True

        def get_window_stats(self, item: Any, *identifiers: str) -> WindowStats:
            return WindowStats(0.0, 0)

    limiter = EverySecond(MemoryStorage(clock=FakeClock(START)))
    limit = RateLimitItemPerMinute(1)
    assert [limiter.hit(limit) for _ in range(4)] == [False, True, False, True]
    limiter.clear(limit)
    assert not limiter.hit(limit)
