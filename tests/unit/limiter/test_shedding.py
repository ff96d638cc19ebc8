"""Deadlines of batches: old requests are shed alone, and slow calls or a late process fail nobody else."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from crestgate import AsyncLimiter, Decision, Limiter
from crestgate.errors import StoreError
from crestgate.limiter.coalescer import CallTime
from crestgate.limiter.loop_coalescer import LoopCoalescer
from crestgate.limiter.thread_coalescer import ThreadCoalescer
from crestgate.stores.port import BatchOutcomes, PartialStoreError, Request
from slow_store import SlowStore

LIMIT = "100/hour"


class Threads:
    """A limiter whose first check is in flight, and threads that wait behind it."""

    def __init__(self, store: SlowStore) -> None:
        self.store = store
        self.limiter = Limiter(store)
        assert self.limiter.backend.coalescer is not None
        self.coalescer: ThreadCoalescer = self.limiter.backend.coalescer
        self.threads: list[threading.Thread] = []
        self.decisions: dict[str, Decision] = {}
        self.start("first")
        assert store.entered.acquire(timeout=10)

    def start(self, key: str) -> None:
        def check() -> None:
            self.decisions[key] = self.limiter.check(key, LIMIT)

        self.threads.append(threading.Thread(target=check, daemon=True))
        self.threads[-1].start()

    def queue(self, *keys: str) -> None:
        for key in keys:
            count = len(self.coalescer.waiting)
            self.start(key)
            end = time.monotonic() + 10
            while len(self.coalescer.waiting) == count:
                assert time.monotonic() < end
                time.sleep(0.001)

    def finish(self, calls: int) -> dict[str, str]:
        self.store.gate.release(calls)
        for thread in self.threads:
            thread.join(10)
        return {key: decision.reason for key, decision in self.decisions.items()}


def test_call_has_the_deadline_of_its_youngest_thread() -> None:
    threads = Threads(SlowStore(timeout=20.0))
    threads.queue("old", "young")
    youngest = threads.coalescer.waiting[1].deadline
    assert threads.finish(2) == {"first": "ok", "old": "ok", "young": "ok"}
    assert threads.store.deadlines[1] == youngest


def test_thread_without_time_for_a_call_is_shed_alone() -> None:
    threads = Threads(SlowStore(timeout=20.0))
    threads.queue("old", "young")
    threads.coalescer.call_time.seconds = 9.0
    threads.coalescer.waiting[0].deadline = time.monotonic() + 5.0
    assert threads.finish(2) == {"first": "ok", "old": "fail_open", "young": "ok"}
    assert threads.store.batches == [["first"], ["young"]]
    assert threads.store.used("old", LIMIT) == 0, "it was certainly not counted"


def test_thread_whose_deadline_passes_in_flight_leaves_alone() -> None:
    threads = Threads(SlowStore(timeout=20.0))
    threads.store.timeout = 0.5
    threads.queue("old")
    threads.store.timeout = 20.0
    threads.queue("young")
    threads.store.gate.release(1)
    assert threads.store.entered.acquire(timeout=10), "both are in flight"
    threads.threads[1].join(10)  # while the call goes on
    assert threads.decisions["old"].reason == "fail_open"
    assert threads.finish(1)["young"] == "ok"
    assert (threads.coalescer.in_flight, len(threads.coalescer.waiting)) == (0, 0)


def test_thread_that_was_not_scheduled_is_sent_all_the_same() -> None:
    """Its deadline passed long ago, and it is still in the queue: so this process did not run."""
    threads = Threads(SlowStore(timeout=20.0))
    threads.queue("late")
    late = threads.coalescer.waiting[0]
    late.deadline = time.monotonic() - 15.0  # it waits until the old one
    assert threads.finish(2) == {"first": "ok", "late": "ok"}


def test_leader_that_is_too_late_hands_its_batch_back() -> None:
    threads = Threads(SlowStore(timeout=20.0))
    threads.queue("old", "young")
    coalescer = threads.coalescer
    with coalescer.lock:  # as `wake_leader` does, but the leader has no time left when it runs
        coalescer.in_flight += 1
        old, young = coalescer.waiting
        coalescer.waiting.clear()
        old.queued = young.queued = False
        young.batch, young.leads = [old, young], True
        young.deadline = time.monotonic() - 0.001
        young.extended = True
        young.wake.release()
    assert threads.finish(3) == {"first": "ok", "old": "ok", "young": "fail_open"}
    assert (coalescer.in_flight, len(coalescer.waiting)) == (0, 0)


def test_slow_calls_of_threads_are_spaced() -> None:
    store = SlowStore(timeout=20.0, max_concurrent_batches=4)
    threads = Threads(store)
    threads.coalescer.call_time.spacing = 1.0
    threads.coalescer.next_send = time.monotonic() + 1.0
    for key in ("a", "b", "c"):
        threads.start(key)
    assert threads.finish(2) == dict.fromkeys(("first", "a", "b", "c"), "ok")
    assert [len(batch) for batch in store.batches] == [1, 3], "they left together, although lanes were free"


def test_call_time_far_below_the_timeout_is_not_measured() -> None:
    calls = CallTime(0.1, 4)
    calls.add(0.001, decided=True)
    assert (calls.seconds, calls.spacing) == (0.0, 0.0)


def test_call_time_follows_slow_calls_and_forgets_them() -> None:
    calls = CallTime(0.1, 4)
    for _ in range(20):
        calls.add(0.06, decided=True)
    assert calls.seconds == pytest.approx(0.06, rel=0.01)
    assert calls.spacing == pytest.approx(0.015, rel=0.01), "four lanes, evenly"
    calls.add(0.0001, decided=False)
    assert calls.seconds == pytest.approx(0.06, rel=0.01), "refused without a call"
    for _ in range(20):
        calls.add(0.001, decided=True)
    assert (calls.seconds, calls.spacing) == (0.0, 0.0)


def test_call_time_leaves_a_fresh_request_enough_time() -> None:
    calls = CallTime(0.1, 4)
    for _ in range(50):
        calls.add(5.0, decided=False)
    assert calls.seconds <= 0.075, "or nothing would be sent any more"


# -- event loops ------------------------------------------------------------------------------------------------------


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Tasks:
    """The same on an event loop."""

    def __init__(self, store: SlowStore) -> None:
        self.store = store
        self.limiter = AsyncLimiter(store)
        self.tasks: dict[str, asyncio.Task[Decision]] = {}

    async def start(self, *keys: str) -> LoopCoalescer:
        for key in keys:
            self.tasks[key] = asyncio.create_task(self.limiter.check(key, LIMIT))
            await turns()
        return self.limiter.driver.coalescers[asyncio.get_running_loop()]

    async def finish(self) -> dict[str, str]:
        await self.store.answer_all()
        return {key: (await asyncio.wait_for(task, 10)).reason for key, task in self.tasks.items()}


def age(coalescer: LoopCoalescer, position: int, seconds_left: float) -> None:
    """Give one that waits another deadline."""
    requests, _, members, future = coalescer.waiting[position]
    coalescer.waiting[position] = (requests, coalescer.lag.now() + seconds_left, members, future)


def test_task_without_time_for_a_call_is_shed_alone() -> None:
    async def scenario() -> None:
        store = SlowStore(timeout=20.0)
        tasks = Tasks(store)
        coalescer = await tasks.start("first", "old", "young")
        coalescer.call_time.seconds = 9.0
        age(coalescer, 0, 5.0)
        assert await tasks.finish() == {"first": "ok", "old": "fail_open", "young": "ok"}
        assert store.batches == [["first"], ["young"]]
        assert store.used("old", LIMIT) == 0, "it was certainly not counted"

    asyncio.run(scenario())


def test_settlement_is_not_shed() -> None:
    async def scenario() -> None:
        store = SlowStore(timeout=20.0)
        limiter = AsyncLimiter(store)
        async with asyncio.timeout(20):
            reserving = asyncio.create_task(limiter.reserve("key", LIMIT, cost=40).__aenter__())
            await turns()
            store.answer()
            reservation = await reserving
            busy = asyncio.create_task(limiter.check("other", LIMIT))
            await turns()
            settling = asyncio.create_task(reservation.settle(0))
            await turns()
            coalescer = limiter.driver.coalescers[asyncio.get_running_loop()]
            coalescer.call_time.seconds = 9.0
            age(coalescer, 0, 5.0)
            await store.answer_all()
            await asyncio.gather(busy, settling)
        assert store.used("key", LIMIT) == 0

    asyncio.run(scenario())


def test_task_whose_deadline_passes_in_flight_is_answered_alone() -> None:
    async def scenario() -> None:
        store = SlowStore(timeout=20.0)
        tasks = Tasks(store)
        await tasks.start("first")
        store.timeout = 0.3
        await tasks.start("old")
        store.timeout = 20.0
        coalescer = await tasks.start("young")
        store.answer()
        await turns()
        assert store.batches == [["first"], ["old", "young"]]
        assert (await asyncio.wait_for(tasks.tasks["old"], 10)).reason == "fail_open"
        assert (await tasks.finish())["young"] == "ok"
        assert store.used("old", LIMIT) == 1, "it was counted, and admitted: that is not given back"
        assert not coalescer.early

    asyncio.run(scenario())


def test_batch_that_has_waited_has_time_of_its_own() -> None:
    async def scenario() -> None:
        store = SlowStore(timeout=20.0)
        tasks = Tasks(store)
        coalescer = await tasks.start("first", "old")
        age(coalescer, 0, 5.0)
        assert await tasks.finish() == {"first": "ok", "old": "ok"}
        assert store.deadlines[1] - time.monotonic() > 10.0

    asyncio.run(scenario())


def test_blocked_loop_fails_no_request() -> None:
    async def scenario() -> None:
        store = SlowStore(timeout=0.1)
        tasks = Tasks(store)
        await tasks.start("first", "second")
        time.sleep(0.3)
        assert await tasks.finish() == {"first": "ok", "second": "ok"}

    asyncio.run(scenario())


def test_blocked_loop_does_not_extend_the_deadline_of_a_later_request() -> None:
    async def scenario() -> None:
        store = SlowStore(timeout=10.0)
        tasks = Tasks(store)
        coalescer = await tasks.start("first")
        time.sleep(0.3)
        await tasks.start("second")
        assert coalescer.waiting[0][1] <= coalescer.lag.now() + store.timeout
        await tasks.finish()

    asyncio.run(scenario())


def test_what_the_loop_computes_is_not_the_time_of_a_call() -> None:
    async def scenario() -> None:
        store = SlowStore(timeout=0.16)
        tasks = Tasks(store)
        coalescer = await tasks.start("first")
        cpu = time.thread_time()
        while time.thread_time() - cpu < 0.04:  # twice the floor, while the reply may be there
            pass
        assert await tasks.finish() == {"first": "ok"}
        assert coalescer.call_time.seconds == 0.0

    asyncio.run(scenario())


def test_slow_calls_of_tasks_are_spaced() -> None:
    async def scenario() -> None:
        store = SlowStore(timeout=20.0, max_concurrent_batches=4)
        tasks = Tasks(store)
        coalescer = await tasks.start("first")
        coalescer.call_time.spacing = 5.0
        coalescer.next_send = time.monotonic() + 5.0
        await tasks.start("a", "b", "c")
        assert store.batches == [["first"]], "although lanes are free"
        coalescer.next_send = 0.0  # the time has come
        coalescer.flush()
        assert await tasks.finish() == dict.fromkeys(("first", "a", "b", "c"), "ok")
        assert store.batches == [["first"], ["a", "b", "c"]]

    asyncio.run(scenario())


# -- several nodes ----------------------------------------------------------------------------------------------------


class HalfHung(SlowStore):
    """Two nodes, of which one hangs: the result is there at the deadline, and one part of it is missing."""

    several_nodes = True

    def decide(self, batch: Sequence[Request]) -> BatchOutcomes:
        replies = self.inner.apply(batch)
        raise PartialStoreError([replies[0], *([StoreError("hangs")] for _ in replies[1:])])


def test_thread_gets_what_the_other_nodes_have_decided() -> None:
    threads = Threads(HalfHung(timeout=20.0))
    threads.queue("old", "young")
    oldest = threads.coalescer.waiting[0].deadline
    assert threads.finish(2) == {"first": "ok", "old": "ok", "young": "fail_open"}
    assert threads.store.deadlines[1] == oldest


def test_task_gets_what_the_other_nodes_have_decided() -> None:
    async def scenario() -> None:
        store = HalfHung(timeout=20.0)
        tasks = Tasks(store)
        coalescer = await tasks.start("first", "old", "young")
        age(coalescer, 0, 5.0)
        oldest = coalescer.waiting[0][1]
        assert await tasks.finish() == {"first": "ok", "old": "ok", "young": "fail_open"}
        assert store.deadlines[1] == pytest.approx(oldest + coalescer.lag.total, abs=0.001)

    asyncio.run(scenario())
