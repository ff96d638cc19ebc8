"""`acquire`: waiting in FIFO order, timeouts and cancellation."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from crestgate import AsyncLimiter, Limiter
from crestgate.testing import FakeClock


def test_acquire_waits_exactly_as_long_as_needed() -> None:
    clock = FakeClock(1_700_000_000)
    limiter = Limiter("memory://", clock=clock)
    limiter.check("k", "1/minute")
    decision = limiter.acquire("k", "1/minute", timeout=60)
    assert decision.allowed
    assert clock.now() == 1_700_000_060


def test_acquire_fails_immediately_when_the_wait_exceeds_the_timeout() -> None:
    clock = FakeClock(1_700_000_000)
    limiter = Limiter("memory://", clock=clock)
    limiter.check("k", "1/minute")
    with pytest.raises(TimeoutError, match=r"not admitted within 59\.9 s"):
        limiter.acquire("k", "1/minute", timeout=59.9)
    assert clock.now() == 1_700_000_000
    assert limiter.peek("k", "1/minute").retry_after == 60.0, "and nothing was consumed"


@pytest.mark.parametrize("limit", ["5/minute", "0/minute"])
def test_acquire_of_an_impossible_cost_fails_immediately(limit: str) -> None:
    limiter = Limiter("memory://", clock=FakeClock())
    with pytest.raises(TimeoutError, match="can never pass"):
        limiter.acquire("k", limit, cost=6)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), 10**400, "5"])
def test_invalid_timeout_is_a_value_error(timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be"):
        Limiter("memory://").acquire("k", "5/minute", timeout=timeout)


def test_timeout_of_zero_does_not_wait() -> None:
    """On the real clock, which moves between any two reads."""
    limiter = Limiter("memory://")
    assert [limiter.acquire("k", "50/hour", timeout=0).allowed for _ in range(50)] == [True] * 50
    with pytest.raises(TimeoutError):
        limiter.acquire("k", "50/hour", timeout=0)
    assert asyncio.run(AsyncLimiter("memory://").acquire("k", "5/hour", timeout=0)).allowed


def test_leaky_bucket_delay_is_waited_for() -> None:
    clock = FakeClock(1_700_000_000)
    limiter = Limiter("memory://", clock=clock)
    limit = "2/second burst 10 using leaky_bucket"
    for expected in (0.0, 0.5, 1.0):
        limiter.check("k", limit)
        assert limiter.peek("k", limit).delay == expected + 0.5
    limiter.acquire("k", limit)
    assert clock.now() == 1_700_000_001.5


def test_cost_is_given_back_when_the_delay_exceeds_the_timeout() -> None:
    clock = FakeClock(1_700_000_000)
    limiter = Limiter("memory://", clock=clock)
    limit = "1/second burst 10 using leaky_bucket"
    limiter.check("k", limit, cost=5)
    with pytest.raises(TimeoutError):
        limiter.acquire("k", limit, timeout=4)
    assert limiter.peek("k", limit).remaining == 5


def test_threads_are_served_in_fifo_order() -> None:
    limiter = Limiter("memory://")
    limit = "20/second burst 1"
    limiter.check("k", limit)
    served: list[int] = []
    threads = []
    for number in range(6):
        threads.append(
            threading.Thread(target=lambda n: served.append((limiter.acquire("k", limit), n)[1]), args=(number,))
        )
        threads[-1].start()
        while len(limiter.wait_queue.waiting.get(("k", (limit,)), ())) <= number and len(served) <= number:
            time.sleep(0.0005)  # until it is in the queue
    for thread in threads:
        thread.join(10)
    assert served == [0, 1, 2, 3, 4, 5]
    assert limiter.wait_queue.waiting == {}


def test_tasks_are_served_in_fifo_order() -> None:
    async def main() -> list[int]:
        limiter = AsyncLimiter("memory://")
        limit = "50/second burst 1"
        await limiter.check("k", limit)
        served: list[int] = []

        async def one(number: int) -> None:
            await limiter.acquire("k", limit)
            served.append(number)

        await asyncio.gather(*(one(number) for number in range(8)))
        assert limiter.wait_queue.waiting == {}
        return served

    assert asyncio.run(main()) == list(range(8))


def test_long_queue_times_out_immediately() -> None:
    async def main() -> None:
        limiter = AsyncLimiter("memory://")
        limit = "1/hour"
        await limiter.check("k", limit)
        first = asyncio.create_task(limiter.acquire("k", limit))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(limiter.acquire("k", limit, timeout=3599), 5)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert limiter.wait_queue.waiting == {}

    asyncio.run(main())


def test_cancelled_waiter_leaves_the_queue_and_consumes_nothing() -> None:
    async def main() -> None:
        limiter = AsyncLimiter("memory://")
        limit = "20/second burst 1"
        await limiter.check("k", limit)
        tasks = [asyncio.create_task(limiter.acquire("k", limit)) for _ in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[2].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, False, True, False]
        assert limiter.wait_queue.waiting == {}

    asyncio.run(main())


def test_waiting_for_one_key_does_not_block_another() -> None:
    async def main() -> None:
        limiter = AsyncLimiter("memory://")
        await limiter.check("slow", "1/hour")
        waiting = asyncio.create_task(limiter.acquire("slow", "1/hour"))
        await asyncio.sleep(0)
        assert (await limiter.acquire("fast", "1/hour", timeout=1)).allowed
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
