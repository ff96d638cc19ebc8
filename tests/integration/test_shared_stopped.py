"""Participants are stopped with SIGSTOP, while they hold a lock and at any moment: they cost the others their deadline
at most, and only where they stand.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl as fcntl_module
import gc
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Literal

import pytest

from crestgate import AsyncLimiter, Limiter, StoreError
from crestgate.stores.shared import SharedStore
from crestgate.stores.shared.locks import ARENA, FIRST_STRIPE, HEADER
from crestgate.testing import FakeClock
from integration.child_process import TIMEOUT, ChildProcess, is_stopped, wait_until

Start = Callable[..., ChildProcess]
pytestmark = pytest.mark.usefixtures("frozen_heap")

Policy = Literal["open", "closed", "local"]

LIMIT = "1000/year"
LOG = "1000/year using sliding_window_log"
SLOW = 5.0
"""Seconds that no check takes: it gives up after two without progress, and a busy machine may add to that."""
REASONS: dict[Policy, tuple[bool, str]] = {
    "open": (True, "fail_open"),
    "closed": (False, "fail_closed"),
    "local": (True, "fallback"),
}


def at(path: Path, timeout_ms: int = 100) -> str:
    return f"shared://{path}?max_keys=1000&timeout_ms={timeout_ms}"


def shared(limiter: Limiter | AsyncLimiter) -> SharedStore:
    store = limiter.store
    assert isinstance(store, SharedStore)
    return store


def keys_on(store: SharedStore, stripe: int, name: str = LIMIT, prefix: str = "key") -> Iterator[str]:
    """Keys whose counters of this name lie in this stripe."""
    return (key for key in (f"{prefix}:{i}" for i in range(10_000)) if store.digests.locate(name, key).stripe == stripe)


@contextmanager
def holding(start: Start, path: Path, *locks: int) -> Iterator[ChildProcess]:
    """Somebody holds these locks and is stopped; afterwards it goes on and has let go of them."""
    child = start("load_programs.hold", url=at(path), locks=list(locks))
    assert child.receive() == "held"
    wait_until("the holder is stopped", lambda: is_stopped(child.pid))
    try:
        yield child
    finally:
        child.signal(signal.SIGCONT)
    assert child.receive() == "released"


async def tick(gaps: list[float]) -> None:
    """Note how long the loop keeps its tasks waiting, until cancelled."""
    last = time.monotonic()
    while True:
        await asyncio.sleep(0.005)
        gaps.append(time.monotonic() - last)
        last = time.monotonic()


def used(limiter: Limiter, key: str, limit: str = LIMIT) -> int:
    standing = limiter.peek(key, limit)
    return standing.limit - standing.remaining


@pytest.mark.parametrize("policy", REASONS)
def test_stopped_holder_delays_by_the_timeout(policy: Policy, counters: Path, start: Start) -> None:
    with Limiter(at(counters), on_store_error=policy) as limiter:
        store = shared(limiter)
        stuck, free = next(keys_on(store, 2)), next(keys_on(store, 3))
        assert limiter.check(stuck, LIMIT).reason == "ok"
        with holding(start, counters, FIRST_STRIPE + 2):
            for _ in range(3):
                before = time.monotonic()
                decision = limiter.check(stuck, LIMIT)
                assert time.monotonic() - before < SLOW
                assert (decision.allowed, decision.reason) == REASONS[policy]
            for count in range(100):
                decision = limiter.check(free, LIMIT)
                assert (decision.reason, decision.remaining) == ("ok", 999 - count)
            assert limiter.store_failures == 3
        decision = limiter.check(stuck, LIMIT)
        assert (decision.reason, decision.remaining) == ("ok", 998), "what the store did not answer was not counted"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_slow_holder_is_waited_for(asynchronous: bool, counters: Path, start: Start) -> None:
    """A holder that is not stopped goes on within moments: giving up on it would let requests pass uncounted."""
    with Limiter(at(counters)) as limiter:
        store = shared(limiter)
        key = next(keys_on(store, 2))
        child = start("load_programs.hold_for", url=at(counters), lock=FIRST_STRIPE + 2, seconds=5 * store.timeout)
        assert child.receive() == "held"

        async def check() -> str:
            async with AsyncLimiter(at(counters), on_store_error="closed") as limiter:
                return (await limiter.check(key, LIMIT)).reason

        if asynchronous:
            assert asyncio.run(asyncio.wait_for(check(), TIMEOUT)) == "ok"
        else:
            assert limiter.check(key, LIMIT).reason == "ok"
        assert child.receive() == "released"


def test_chain_through_a_stopped_stripe_charges_nothing(counters: Path, start: Start) -> None:
    other = "500/year using fixed_window"
    with Limiter(at(counters), on_store_error="closed") as limiter:
        store = shared(limiter)
        key = next(key for key in keys_on(store, 4) if store.digests.locate(other, key).stripe != 4)
        assert limiter.check(key, [other, LIMIT]).reason == "ok"
        with holding(start, counters, FIRST_STRIPE + 4):
            assert limiter.check(key, [other, LIMIT]).reason == "fail_closed"
            assert limiter.check(key, [LIMIT, other]).reason == "fail_closed"
            assert used(limiter, key, other) == 1
            assert [d.reason for d in limiter.check_many([(key, other), (key, LIMIT)])] == ["fail_closed"] * 2
        assert (used(limiter, key), used(limiter, key, other)) == (1, 1)


def test_waiting_chains_do_not_block_others(counters: Path, start: Start) -> None:
    """Chains that wait for a stopped stripe must not keep what they have locked from those who need only that."""
    with Limiter(at(counters), on_store_error="closed") as limiter:
        store = shared(limiter)
        other = "500/year using fixed_window"
        key = next(key for key in keys_on(store, 4) if store.digests.locate(other, key).stripe < 4)
        with holding(start, counters, FIRST_STRIPE + 4):
            child = start("load_programs.hammer_until_message", url=at(counters), limits=[other, LIMIT], key=key)
            assert child.receive() == "ready"
            child.send("go")
            assert child.receive() == "off"
            reasons, waits = [], []
            for _ in range(50):
                before = time.monotonic()
                reasons.append(limiter.check(key, other).reason)
                waits.append(time.monotonic() - before)
            child.send("stop")
            assert child.finish()["admitted"] == {}
        assert reasons == ["ok"] * 50
        assert median(waits) < store.timeout / 2, "each of them waited for a chain that waited"
        assert used(limiter, key, other) == 50


def test_event_loop_is_not_blocked(counters: Path, start: Start) -> None:
    gaps: list[float] = []

    async def body() -> None:
        async with AsyncLimiter(at(counters, 1000), on_store_error="closed") as limiter:
            store = shared(limiter)
            stuck, free = next(keys_on(store, 2)), next(keys_on(store, 3))
            assert (await limiter.check(stuck, LIMIT)).reason == "ok"
            with holding(start, counters, FIRST_STRIPE + 2):
                ticker = asyncio.create_task(tick(gaps))
                before = time.monotonic()
                waiting = [asyncio.create_task(limiter.check(stuck, LIMIT)) for _ in range(4)]
                for count in range(20):
                    decision = await limiter.check(free, LIMIT)
                    assert (decision.reason, decision.remaining) == ("ok", 999 - count)
                    await asyncio.sleep(0)
                decisions = await asyncio.gather(*waiting)
                took = time.monotonic() - before
                ticker.cancel()
            assert {d.reason for d in decisions} == {"fail_closed"}
            assert 0.8 < took < 2 * SLOW
            assert len(gaps) > 5, "the ticker ticked while the checks waited"
            assert max(gaps) < 0.8, "nobody held up the loop for as long as the deadline"
            decision = await limiter.check(stuck, LIMIT)
            assert (decision.reason, decision.remaining) == ("ok", 998)

    asyncio.run(asyncio.wait_for(body(), TIMEOUT))


def test_many_tasks_wait_no_longer_than_one(counters: Path, start: Start) -> None:
    """Each has its own deadline, and together they take no more of the loop than each alone."""
    gaps: list[float] = []

    async def check(limiter: AsyncLimiter, key: str) -> tuple[str, float]:
        before = time.monotonic()
        decision = await limiter.check(key, LIMIT)
        return decision.reason, time.monotonic() - before

    async def body() -> None:
        async with AsyncLimiter(at(counters), on_store_error="closed") as limiter:
            key = next(keys_on(shared(limiter), 2))
            with holding(start, counters, FIRST_STRIPE + 2):
                ticker = asyncio.create_task(tick(gaps))
                await asyncio.sleep(0.01)
                answers = await asyncio.gather(*(check(limiter, key) for _ in range(400)))
                await asyncio.sleep(0.01)
                ticker.cancel()
            assert {reason for reason, _ in answers} == {"fail_closed"}
            assert max(took for _, took in answers) < SLOW
            assert max(gaps) < 1.0, "400 tasks that block one after the other would take 40 s"
            assert (await limiter.check(key, LIMIT)).remaining == 999

    asyncio.run(asyncio.wait_for(body(), TIMEOUT))


def test_event_loop_is_not_blocked_by_the_block_region(counters: Path, start: Start) -> None:
    """A log that needs a new block waits for the region's lock, and that too must not be done on the loop."""
    gaps: list[float] = []

    async def body() -> None:
        async with AsyncLimiter(at(counters, 2000), on_store_error="closed") as limiter:
            for _ in range(11):
                await limiter.check("key", LOG)
            with holding(start, counters, ARENA):
                ticker = asyncio.create_task(tick(gaps))
                await asyncio.sleep(0.01)
                decision = await limiter.check("key", LOG)
                await asyncio.sleep(0.01)
                ticker.cancel()
            assert decision.reason == "fail_closed"
            assert max(gaps) < 1.0, "nobody held up the loop for as long as the deadline"
            assert (await limiter.check("key", LOG)).remaining == 1000 - 12

    asyncio.run(asyncio.wait_for(body(), TIMEOUT))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_interrupted_batch_is_not_counted_twice(asynchronous: bool, counters: Path, start: Start) -> None:
    """The first request of a batch is decided, the second finds the region of the logs locked."""
    batch = [("first", LIMIT), ("second", LOG)]

    async def check() -> list[str]:
        async with AsyncLimiter(at(counters), on_store_error="closed") as limiter:
            return [d.reason for d in await limiter.check_many(batch)]

    with Limiter(at(counters), on_store_error="closed") as limiter:
        for _ in range(11):
            limiter.check("second", LOG)
        with holding(start, counters, ARENA):
            before = time.monotonic()
            if asynchronous:
                reasons = asyncio.run(asyncio.wait_for(check(), TIMEOUT))
            else:
                reasons = [d.reason for d in limiter.check_many(batch)]
            assert time.monotonic() - before < SLOW
        assert reasons[1] == "fail_closed"
        assert used(limiter, "second", LOG) == 11
        assert used(limiter, "first") == (reasons[0] == "ok"), "denied is not counted, admitted is counted once"


def test_open_times_out(counters: Path, start: Start) -> None:
    Limiter(at(counters)).close()
    with holding(start, counters, HEADER):
        gc.collect()
        before, descriptors = time.monotonic(), len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(StoreError, match=str(counters)):
                Limiter(at(counters))
        assert time.monotonic() - before < 3 * SLOW
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == descriptors, "nothing stays open"
    with Limiter(at(counters)) as limiter:
        assert limiter.check("key", LIMIT).reason == "ok"


class BrokenClock(FakeClock):
    """A clock that fails when told to."""

    broken = False

    def ticks(self) -> int:
        if self.broken:
            raise RuntimeError("no time")
        return super().ticks()


@pytest.mark.parametrize("limits", [LIMIT, [LIMIT, LOG, "7/year"]], ids=["one limit", "a chain"])
def test_exception_leaves_no_lock_behind(limits: str | list[str], counters: Path) -> None:
    """Nobody has to be stopped for a lock to stay locked: it is enough to forget it."""
    clock = BrokenClock(1_700_000_000)
    with Limiter(at(counters), clock=clock, on_store_error="closed") as limiter:
        assert limiter.check("key", limits).reason == "ok"
        clock.broken = True
        with pytest.raises(RuntimeError):
            limiter.check("key", limits)
        clock.broken = False
        assert limiter.check("key", limits).reason == "ok"


@pytest.mark.parametrize("nth", range(1, 7))
@pytest.mark.parametrize("limits", [LIMIT, [LIMIT, LOG, "7/year"]], ids=["one limit", "a chain"])
def test_failing_lock_call_leaves_no_lock_behind(nth: int, limits: str | list[str], counters: Path) -> None:
    """The kernel has no more locks to give, just when the nth is taken or released; later it has."""
    with Limiter(at(counters), on_store_error="closed") as limiter, Limiter(at(counters)) as other:
        names = limiter.bind(limits).names
        store = shared(limiter)
        keys = (f"key:{i}" for i in range(1000))
        key = next(key for key in keys if len({store.digests.locate(name, key).stripe for name in names}) == len(names))
        assert limiter.check(key, limits).reason == "ok"
        locks = store.locks
        real = locks.fcntl
        calls = 0

        def fcntl(descriptor: int, command: int, argument: bytes) -> object:
            nonlocal calls
            calls += 1
            if calls == nth and argument[:2] == fcntl_module.F_WRLCK.to_bytes(2, sys.byteorder):
                raise OSError(errno.ENOLCK, "No locks available")
            return real(descriptor, command, argument)

        locks.fcntl = fcntl
        assert limiter.check(key, limits).reason in ("ok", "fail_closed")
        locks.fcntl = real
        assert limiter.check(key, limits).reason == "ok"
        assert other.check(key, limits).reason == "ok"


def test_stops_at_random_moments(counters: Path, start: Start) -> None:
    chance = random.Random(7)
    limit = "10000000/year using fixed_window"
    children = [
        start("load_programs.hammer_until_message", url=at(counters), limits=[limit], key="key") for _ in range(3)
    ]
    for child in children:
        assert child.receive() == "ready"
        child.send("go")
        assert child.receive() == "off"
    victim = children[0]
    with Limiter(at(counters), on_store_error="closed") as limiter:
        admitted = 0
        for _ in range(30):
            victim.signal(signal.SIGSTOP)
            wait_until("the victim is stopped", lambda: is_stopped(victim.pid))
            before = time.monotonic()
            decision = limiter.check("key", limit)
            assert time.monotonic() - before < SLOW
            assert decision.reason in ("ok", "fail_closed")
            admitted += decision.allowed
            victim.signal(signal.SIGCONT)
            time.sleep(chance.uniform(0, 0.01))  # the random moment
        for child in children:
            child.send("stop")
        tallies = [child.finish() for child in children]
        for tally in tallies:
            assert set(tally["others"]) <= {"fail_closed"}
            admitted += tally["admitted"]["key"]
        for tally in tallies[1:]:
            assert tally["slowest"] < SLOW
        assert used(limiter, "key", limit) == admitted, "what was admitted was counted, and once"
