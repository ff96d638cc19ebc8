"""Thousands of callers of a store that hangs: all get an answer in time, and nothing of them stays in memory.

What a busy machine adds to a wait is not the limiter's doing. So plain waits of the same length run concurrently, in
the same loop or in threads of the same process, until the last check is answered; a check may take a few times as long.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest

from crestgate import AsyncLimiter
from crestgate.limiter.coalescer import MAX_WAITING
from crestgate.stores.port import Op, Request
from crestgate.stores.remote_port import RemoteStore
from integration.network.history import Check
from integration.network.sites import DEADLINE, LIMIT, Site
from integration.network.victims import Threads
from servers.machine import PATIENCE, until

FACTOR = 3
Report = Callable[[str], None]
pytestmark = pytest.mark.usefixtures("frozen_heap")


def live_requests() -> int:
    """How many requests are still referenced."""
    gc.collect()
    witness = Request(Op.PEEK, [])
    # By its type: to ask objects of others for their class makes some of them, lazy ones, do what they put off.
    found = [thing for thing in gc.get_objects() if type(thing) is Request]
    assert witness in found, "they can be seen"
    return len(found)


def assert_answered(report: Report, checks: list[Check], plain: list[float]) -> None:
    """Every check was answered by its policy, in time: `plain` are the seconds that plain waits took meanwhile."""
    assert {check.reason for check in checks} == {"fail_closed"}
    waits = sorted(check.end - check.start for check in checks)
    report(
        f"{len(waits)} callers waited {median(waits) * 1000:.0f} ms (median), {waits[-1] * 1000:.0f} ms (longest); "
        f"plain waits of {DEADLINE * 1000:.0f} ms took up to {max(plain) * 1000:.0f} ms"
    )
    assert waits[-1] < FACTOR * max(plain)


async def crowd(limiter: AsyncLimiter, size: int) -> list[Check]:
    async def one() -> Check:
        start = time.monotonic()
        decision = await limiter.check("crowd", LIMIT)
        return Check("crowd", 1, start, time.monotonic(), decision.allowed, decision.remaining, decision.reason)

    return list(await asyncio.gather(*(one() for _ in range(size))))


async def connected(limiter: AsyncLimiter) -> None:
    """Until the store has answered: the first call connects, which may take a busy machine more than the deadline."""
    async with asyncio.timeout(PATIENCE):
        while (await limiter.check("before", LIMIT)).reason != "ok":
            await asyncio.sleep(0.02)


async def plain_waits(size: int, checks: asyncio.Task[list[Check]]) -> list[float]:
    """How long sleeps of the same length take: `size` at once, and then one after the other until the checks end."""

    async def one() -> float:
        start = time.monotonic()
        await asyncio.sleep(DEADLINE)
        return time.monotonic() - start

    waits = list(await asyncio.gather(*(one() for _ in range(size))))
    while not checks.done():
        waits.append(await one())
    return waits


def plain_thread_wait(over: threading.Event) -> float:
    """The longest of the waits of one thread, until the checks end."""
    longest = 0.0
    while True:
        start = time.monotonic()
        threading.Event().wait(DEADLINE)
        longest = max(longest, time.monotonic() - start)
        if over.is_set():
            return longest


def test_two_thousand_tasks(site: Site, report: Report) -> None:
    async def load() -> None:
        async with AsyncLimiter(site.url(), on_store_error="closed") as limiter:
            await connected(limiter)
            site.server.pause()
            try:
                for _ in range(2):
                    checks = asyncio.create_task(crowd(limiter, 2000))
                    plain = await plain_waits(2000, checks)
                    assert_answered(report, await checks, plain)
            finally:
                site.server.resume()
            (coalescer,) = limiter.driver.coalescers.values()
            assert (len(coalescer.waiting), coalescer.in_flight) == (0, 0)

    before = live_requests()
    asyncio.run(load())
    assert live_requests() <= before + 5, "no more than those in the log that pytest keeps"


def test_two_hundred_threads(site: Site, report: Report) -> None:
    before = live_requests()
    with Threads(site.url(), "closed") as one:
        until("the store answers", lambda: one.check("before", LIMIT).reason == "ok")
        site.server.pause()
        try:
            with ThreadPoolExecutor(50) as others:
                over = threading.Event()
                plain = [others.submit(plain_thread_wait, over) for _ in range(50)]
                try:
                    checks = one.at_once(200, "crowd", LIMIT)
                finally:
                    over.set()
                assert_answered(report, checks, [wait.result() for wait in plain])
        finally:
            site.server.resume()
    assert live_requests() <= before + 5, "no more than those in the log that pytest keeps"


def test_queue_is_bounded(site: Site) -> None:
    """Who comes when too many wait already is told so at once."""

    async def load() -> None:
        async with AsyncLimiter(site.url(deadline=1.0), on_store_error="closed") as limiter:
            await connected(limiter)
            store = limiter.store
            assert isinstance(store, RemoteStore)
            room = MAX_WAITING + store.lanes * store.max_members
            site.server.pause()
            try:
                checks = await crowd(limiter, room + 1000)
            finally:
                site.server.resume()
            assert {check.reason for check in checks} == {"fail_closed"}
            at_once = [check for check in checks if check.end - check.start < 1.0]  # who waits waits that long
            assert len(at_once) >= 1000
            (coalescer,) = limiter.driver.coalescers.values()
            assert (len(coalescer.waiting), coalescer.in_flight) == (0, 0)

    asyncio.run(load())
