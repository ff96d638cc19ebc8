"""Crowds before a store that hangs: all are answered in time, and none of them is remembered afterwards.

What a busy machine adds to a wait is not the limiter's doing. So beside each crowd others just wait for as long as the
deadline is, in the same loop or in threads of the same process, and a check may take a few times what they took.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from headgate import AsyncLimiter
from headgate.engine.coalescer import MOST_WAITING, Ticket
from headgate.stores.port import Op, Request
from headgate.stores.remote import RemoteStore
from integration.network.history import Check
from integration.network.sites import DEADLINE, LIMIT, Site
from integration.network.victims import Threads

FACTOR = 3
Report = Callable[[str], None]


def tickets() -> int:
    """How many callers somebody still remembers."""
    gc.collect()
    witness = Ticket([Request(Op.PEEK, [])], 0.0)
    # By its type: to ask objects of others for their class makes some of them, lazy ones, do what they put off.
    found = [thing for thing in gc.get_objects() if type(thing) is Ticket]
    assert witness in found, "they can be seen"
    return len(found)


def told(report: Report, checks: list[Check], plain: list[float]) -> None:
    """Every one was answered by its policy, in its time: `plain` are the seconds that plain waits took meanwhile."""
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


async def plain_waits(size: int) -> list[float]:
    async def one() -> float:
        start = time.monotonic()
        await asyncio.sleep(DEADLINE)
        return time.monotonic() - start

    return list(await asyncio.gather(*(one() for _ in range(size))))


def plain_wait() -> float:
    start = time.monotonic()
    threading.Event().wait(DEADLINE)
    return time.monotonic() - start


def test_two_thousand_tasks(site: Site, report: Report) -> None:
    async def load() -> None:
        async with AsyncLimiter(site.url(), on_store_error="closed") as limiter:
            assert (await limiter.check("before", LIMIT)).reason == "ok"
            site.server.pause()
            try:
                for _ in range(2):
                    plain, checks = await asyncio.gather(plain_waits(2000), crowd(limiter, 2000))
                    told(report, checks, plain)
            finally:
                site.server.resume()
            (coalescer,) = limiter._coalescers.values()
            assert (len(coalescer.waiting), coalescer.flying) == (0, 0)

    before = tickets()
    asyncio.run(load())
    assert tickets() <= before + 5, "no more than those in the log that pytest keeps"


def test_two_hundred_threads(site: Site, report: Report) -> None:
    before = tickets()
    with Threads(site.url(), "closed") as one:
        assert one.check("before", LIMIT).reason == "ok"
        site.server.pause()
        try:
            with ThreadPoolExecutor(50) as others:
                plain = [others.submit(plain_wait) for _ in range(50)]
                told(report, one.at_once(200, "crowd", LIMIT), [wait.result() for wait in plain])
        finally:
            site.server.resume()
    assert tickets() <= before + 5, "no more than those in the log that pytest keeps"


def test_the_queue_is_bounded(site: Site) -> None:
    """Who comes when too many wait already is told so at once."""

    async def load() -> None:
        async with AsyncLimiter(site.url(deadline=1.0), on_store_error="closed") as limiter:
            assert (await limiter.check("before", LIMIT)).reason == "ok"
            store = limiter._store
            assert isinstance(store, RemoteStore)
            room = MOST_WAITING + store.lanes * store.most_members
            site.server.pause()
            try:
                checks = await crowd(limiter, room + 1000)
            finally:
                site.server.resume()
            assert {check.reason for check in checks} == {"fail_closed"}
            at_once = [check for check in checks if check.end - check.start < 1.0]  # who waits waits that long
            assert len(at_once) >= 1000
            (coalescer,) = limiter._coalescers.values()
            assert (len(coalescer.waiting), coalescer.flying) == (0, 0)

    asyncio.run(load())
