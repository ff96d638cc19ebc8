"""The time in which an event loop does not run is measured, and only while somebody uses it."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref

from crestgate.runtime import loop_lag
from crestgate.runtime.loop_lag import LoopLag, lag_of


def test_blocked_loop_has_a_lag() -> None:
    async def scenario() -> tuple[float, float]:
        lag = lag_of(asyncio.get_running_loop())
        lag.start()
        before = lag.now()
        time.sleep(0.2)
        seen = lag.now() - before
        while lag.total < 0.1:  # the late timer measures it, too
            await asyncio.sleep(0)
        return seen, lag.total

    seen, total = asyncio.run(scenario())
    assert seen < 0.1, "the loop's own time stands still"
    assert total >= 0.15


def test_blocked_time_counts_once() -> None:
    async def scenario() -> None:
        lag = lag_of(asyncio.get_running_loop())
        lag.start()
        started = time.monotonic()
        for _ in range(5):
            time.sleep(0.05)
            lag.now()
            await asyncio.sleep(0)
        assert 0.1 < lag.total <= time.monotonic() - started

    asyncio.run(scenario())


def test_users_of_a_loop_share_its_lag() -> None:
    async def scenario() -> bool:
        loop = asyncio.get_running_loop()
        return lag_of(loop) is lag_of(loop)

    assert asyncio.run(scenario())


def test_unused_measurement_stops() -> None:
    async def scenario() -> None:
        lag = LoopLag(asyncio.get_running_loop())
        lag.start()
        for _ in range(10_000):
            if not lag.active:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("it is still measuring")

    was, loop_lag.MAX_IDLE = loop_lag.MAX_IDLE, 3
    try:
        asyncio.run(scenario())
    finally:
        loop_lag.MAX_IDLE = was


def test_closed_loop_is_released() -> None:
    loop = asyncio.new_event_loop()
    lag_of(loop).start()
    loop.close()
    released = weakref.ref(loop)
    del loop
    gc.collect()
    assert released() is None


def test_computing_is_not_unscheduled() -> None:
    async def scenario() -> tuple[float, float]:
        lag = lag_of(asyncio.get_running_loop())
        lag.start()
        cpu = time.thread_time()
        while time.thread_time() - cpu < 0.2:  # a callback that computes
            pass
        lag.now()
        return lag.total, lag.unscheduled

    total, unscheduled = asyncio.run(scenario())
    assert total - unscheduled > 0.1


def test_short_computing_counts_by_half() -> None:
    async def scenario() -> None:
        lag = lag_of(asyncio.get_running_loop())
        lag.start()
        began = time.thread_time()
        for _ in range(5):
            cpu = time.thread_time()
            while time.thread_time() - cpu < 0.02:
                pass
            lag.now()
        computed = time.thread_time() - began
        assert 0.03 < lag.total - lag.unscheduled < 0.75 * computed

    asyncio.run(scenario())
