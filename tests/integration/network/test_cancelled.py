"""Callers that give up, at any moment, neither lose nor keep what was taken for them.

A caller that leaves the queue was never there. One that leaves while its batch is under way, or when the answer is
there and it has not yet run again, gets no decision: so what was taken for it is given back.
"""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from headgate import AsyncLimiter
from integration.network.sites import LIMIT, Site

Outcome = bool | BaseException


async def kept(limiter: AsyncLimiter, tasks: list[asyncio.Task[bool]]) -> tuple[int, int]:
    """How many were admitted and told so, and how many were cancelled."""
    outcomes: list[Outcome] = await asyncio.gather(*tasks, return_exceptions=True)
    cancelled = sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    told = sum(outcome is True for outcome in outcomes)
    assert told + cancelled == len(tasks), [o for o in outcomes if not isinstance(o, bool | asyncio.CancelledError)]
    assert limiter.store_failures == 0
    return told, cancelled


async def used_is(site: Site, key: str, count: int) -> None:
    """What is given back travels for a moment. Then it stays."""
    deadline = time.monotonic() + 10
    while (used := site.used(key)) != count:
        assert time.monotonic() < deadline, f"{used} are used, and {count} were told that they may pass"
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    assert site.used(key) == count


def test_at_any_moment(site: Site) -> None:
    """In the queue, under way and just answered."""

    async def check(limiter: AsyncLimiter) -> bool:
        await asyncio.sleep(random.uniform(0, 0.02))  # so that most come while calls are under way, and queue up
        return (await limiter.check("key", LIMIT)).allowed

    async def load() -> None:
        told = gone = 0
        async with AsyncLimiter(site.url(deadline=30), on_store_error="closed") as limiter:
            for _ in range(10):
                tasks = [asyncio.create_task(check(limiter)) for _ in range(300)]
                for task in tasks[::2]:
                    asyncio.get_running_loop().call_later(random.uniform(0, 0.04), task.cancel)
                more_told, more_gone = await kept(limiter, tasks)
                told, gone = told + more_told, gone + more_gone
            assert told >= 1500
            assert gone > 300, "many were cancelled before they were answered"
            await used_is(site, "key", told)

    site.proxy.delay(0.005)
    asyncio.run(load())


def test_while_their_answer_waits_for_them(site: Site) -> None:
    """The first of a batch that runs again cancels the others, whose answers have come too: a race, as in any_of."""

    async def race(limiter: AsyncLimiter) -> tuple[int, int]:
        tasks: list[asyncio.Task[bool]] = []

        async def check() -> bool:
            decision = await limiter.check("race", LIMIT)
            for other in tasks:
                if other is not asyncio.current_task():
                    other.cancel()
            return decision.allowed

        tasks += [asyncio.create_task(check()) for _ in range(10)]
        return await kept(limiter, tasks)

    async def races() -> None:
        async with AsyncLimiter(site.url(deadline=30), on_store_error="closed") as limiter:
            outcomes = [await race(limiter) for _ in range(50)]
            assert sum(gone for _, gone in outcomes) > 0
            await used_is(site, "race", sum(told for told, _ in outcomes))

    asyncio.run(races())


@pytest.mark.parametrize("deadline", [0.001, 0.003])
def test_by_their_own_timeouts(site: Site, deadline: float) -> None:
    async def check(limiter: AsyncLimiter) -> bool:
        try:
            async with asyncio.timeout(deadline * random.uniform(0.5, 2)):
                return (await limiter.check("timeout", LIMIT)).allowed
        except TimeoutError:
            return False

    async def load() -> None:
        async with AsyncLimiter(site.url(deadline=30), on_store_error="closed") as limiter:
            told = 0
            for _ in range(10):
                told += sum(await asyncio.gather(*(check(limiter) for _ in range(100))))
            assert limiter.store_failures == 0
            await used_is(site, "timeout", told)

    asyncio.run(load())
