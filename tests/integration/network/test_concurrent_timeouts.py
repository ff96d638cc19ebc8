"""Thousands of checks on a hanging store: all complete in time, and none stays in memory.

A busy machine delays every wait. So plain waits of the same length run concurrently, in the same loop or in threads of
the same process, until the last check completes; a check may take a few times as long.
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
from crestgate.stores.remote_store import RemoteStore
from integration.network.history import Check
from integration.network.policy_limiters import Threads
from integration.network.proxied_server import DEADLINE, LIMIT, ProxiedServer
from servers.machine import PATIENCE, until

FACTOR = 3
Report = Callable[[str], None]
pytestmark = pytest.mark.usefixtures("frozen_heap")


def live_requests() -> int:
    """How many requests are still referenced."""
    gc.collect()
    witness = Request(Op.PEEK, [])
    # By type(): isinstance() would trigger lazy objects of other libraries.
    requests = [thing for thing in gc.get_objects() if type(thing) is Request]
    assert witness in requests, "requests are visible to gc"
    return len(requests)


def assert_in_time(report: Report, checks: list[Check], plain: list[float]) -> None:
    """Every check was decided by its policy in time; `plain` are the durations of plain waits meanwhile."""
    assert {check.reason for check in checks} == {"fail_closed"}
    waits = sorted(check.end - check.start for check in checks)
    report(
        f"{len(waits)} callers waited {median(waits) * 1000:.0f} ms (median), {waits[-1] * 1000:.0f} ms (longest); "
        f"plain waits of {DEADLINE * 1000:.0f} ms took up to {max(plain) * 1000:.0f} ms"
    )
    assert waits[-1] < FACTOR * max(plain)


async def run_checks(limiter: AsyncLimiter, size: int) -> list[Check]:
    async def one() -> Check:
        start = time.monotonic()
        decision = await limiter.check("crowd", LIMIT)
        return Check("crowd", 1, start, time.monotonic(), decision.allowed, decision.remaining, decision.reason)

    return list(await asyncio.gather(*(one() for _ in range(size))))


async def wait_until_connected(limiter: AsyncLimiter) -> None:
    """Wait for the first success: connecting may exceed the deadline on a busy machine."""
    async with asyncio.timeout(PATIENCE):
        while (await limiter.check("before", LIMIT)).reason != "ok":
            await asyncio.sleep(0.02)


async def wait_until_idle(limiter: AsyncLimiter) -> None:
    """A call may end after all its callers have left."""
    (coalescer,) = limiter.driver.coalescers.values()
    async with asyncio.timeout(PATIENCE):
        while (len(coalescer.waiting), coalescer.in_flight) != (0, 0):
            await asyncio.sleep(0.02)


async def plain_waits(size: int, checks: asyncio.Task[list[Check]]) -> list[float]:
    """Durations of sleeps of the same length: `size` concurrently, then one after the other until the checks end."""

    async def one() -> float:
        start = time.monotonic()
        await asyncio.sleep(DEADLINE)
        return time.monotonic() - start

    waits = list(await asyncio.gather(*(one() for _ in range(size))))
    while not checks.done():
        waits.append(await one())
    return waits


def plain_thread_wait(stop_event: threading.Event) -> float:
    """The longest of the waits of one thread, until the checks end."""
    longest = 0.0
    while True:
        start = time.monotonic()
        threading.Event().wait(DEADLINE)
        longest = max(longest, time.monotonic() - start)
        if stop_event.is_set():
            return longest


def test_two_thousand_tasks(site: ProxiedServer, report: Report) -> None:
    async def load() -> None:
        async with AsyncLimiter(site.url(), on_store_error="closed") as limiter:
            await wait_until_connected(limiter)
            site.server.pause()
            try:
                for _ in range(2):
                    checks = asyncio.create_task(run_checks(limiter, 2000))
                    plain = await plain_waits(2000, checks)
                    assert_in_time(report, await checks, plain)
            finally:
                site.server.resume()
            await wait_until_idle(limiter)

    before = live_requests()
    asyncio.run(load())
    assert live_requests() <= before + 5, "at most those in the log kept by pytest"


def test_two_hundred_threads(site: ProxiedServer, report: Report) -> None:
    before = live_requests()
    with Threads(site.url(), "closed") as one:
        until("the store answers", lambda: one.check("before", LIMIT).reason == "ok")
        site.server.pause()
        try:
            with ThreadPoolExecutor(50) as others:
                stop_event = threading.Event()
                plain = [others.submit(plain_thread_wait, stop_event) for _ in range(50)]
                try:
                    checks = one.check_concurrently(200, "crowd", LIMIT)
                finally:
                    stop_event.set()
                assert_in_time(report, checks, [wait.result() for wait in plain])
        finally:
            site.server.resume()
    assert live_requests() <= before + 5, "at most those in the log kept by pytest"


def test_queue_is_bounded(site: ProxiedServer) -> None:
    """A check that meets a full queue fails immediately."""

    async def load() -> None:
        async with AsyncLimiter(site.url(deadline=1.0), on_store_error="closed") as limiter:
            await wait_until_connected(limiter)
            store = limiter.store
            assert isinstance(store, RemoteStore)
            room = MAX_WAITING + store.max_concurrent_batches * store.max_members
            site.server.pause()
            try:
                checks = await run_checks(limiter, room + 1000)
            finally:
                site.server.resume()
            assert {check.reason for check in checks} == {"fail_closed"}
            immediate = [check for check in checks if check.end - check.start < 1.0]  # a queued check waits that long
            assert len(immediate) >= 1000
            await wait_until_idle(limiter)

    asyncio.run(load())
