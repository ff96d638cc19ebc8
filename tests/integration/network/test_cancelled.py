"""Cancelled checks are neither lost nor charged.

A caller that is cancelled in the queue is removed. One that is cancelled while its batch is in flight, or before it
runs again with its result, gets no decision: so its charge is given back.
"""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from crestgate import AsyncLimiter
from integration.network.proxied_server import LIMIT, ProxiedServer

Outcome = bool | BaseException


async def count_admitted(limiter: AsyncLimiter, tasks: list[asyncio.Task[bool]]) -> tuple[int, int]:
    """How many were admitted, and how many were cancelled."""
    outcomes: list[Outcome] = await asyncio.gather(*tasks, return_exceptions=True)
    cancelled = sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    admitted = sum(outcome is True for outcome in outcomes)
    assert admitted + cancelled == len(tasks), [o for o in outcomes if not isinstance(o, bool | asyncio.CancelledError)]
    assert limiter.store_failures == 0
    return admitted, cancelled


async def wait_for_usage(site: ProxiedServer, key: str, count: int) -> None:
    """Wait until the give-backs have arrived."""
    deadline = time.monotonic() + 10
    while (used := site.used(key)) != count:
        assert time.monotonic() < deadline, f"{used} are used, and {count} were admitted"
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    assert site.used(key) == count


def test_cancelled_at_random_times(site: ProxiedServer) -> None:
    """In the queue, in flight, and just completed."""

    async def check(limiter: AsyncLimiter) -> bool:
        await asyncio.sleep(random.uniform(0, 0.02))  # so that most arrive while calls are in flight, and queue
        return (await limiter.check("key", LIMIT)).allowed

    async def load() -> None:
        admitted = cancelled = 0
        async with AsyncLimiter(site.url(deadline=30), on_store_error="closed") as limiter:
            for _ in range(10):
                tasks = [asyncio.create_task(check(limiter)) for _ in range(300)]
                for task in tasks[::2]:
                    asyncio.get_running_loop().call_later(random.uniform(0, 0.04), task.cancel)
                more_admitted, more_cancelled = await count_admitted(limiter, tasks)
                admitted, cancelled = admitted + more_admitted, cancelled + more_cancelled
            assert admitted >= 1500
            assert cancelled > 300, "many were cancelled before they completed"
            await wait_for_usage(site, "key", admitted)

    site.proxy.delay(0.005)
    asyncio.run(load())


def test_cancelled_after_the_result_arrived(site: ProxiedServer) -> None:
    """The first task of a batch to resume cancels the others, whose results have arrived too."""

    async def race(limiter: AsyncLimiter) -> tuple[int, int]:
        tasks: list[asyncio.Task[bool]] = []

        async def check() -> bool:
            decision = await limiter.check("race", LIMIT)
            for other in tasks:
                if other is not asyncio.current_task():
                    other.cancel()
            return decision.allowed

        tasks += [asyncio.create_task(check()) for _ in range(10)]
        return await count_admitted(limiter, tasks)

    async def races() -> None:
        async with AsyncLimiter(site.url(deadline=30), on_store_error="closed") as limiter:
            outcomes = [await race(limiter) for _ in range(50)]
            assert sum(cancelled for _, cancelled in outcomes) > 0
            await wait_for_usage(site, "race", sum(admitted for admitted, _ in outcomes))

    asyncio.run(races())


@pytest.mark.parametrize("deadline", [0.001, 0.003])
def test_cancelled_by_timeouts(site: ProxiedServer, deadline: float) -> None:
    async def check(limiter: AsyncLimiter) -> bool:
        try:
            async with asyncio.timeout(deadline * random.uniform(0.5, 2)):
                return (await limiter.check("timeout", LIMIT)).allowed
        except TimeoutError:
            return False

    async def load() -> None:
        async with AsyncLimiter(site.url(deadline=30), on_store_error="closed") as limiter:
            admitted = 0
            for _ in range(10):
                admitted += sum(await asyncio.gather(*(check(limiter) for _ in range(100))))
            assert limiter.store_failures == 0
            await wait_for_usage(site, "timeout", admitted)

    asyncio.run(load())
