"""Requests that wait for a store across a network leave together: in order, in bounds, in time, for nobody twice."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate import AsyncLimiter, Decision, Limit, Limiter, StoreError
from headgate.core.algorithms import build
from headgate.stores.port import Member, Op, PartlyAnswered, Request
from slow_store import SlowStore


def start(limiter: Limiter, key: str, limit: str = "100/hour") -> tuple[threading.Thread, list[Decision]]:
    answers: list[Decision] = []
    thread = threading.Thread(target=lambda: answers.append(limiter.check(key, limit)))
    thread.start()
    return thread, answers


def wait_for(condition: object, seconds: float = 5.0) -> None:
    """Threads have no virtual time: wait until the others have got there."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "the other threads did not get there"
        time.sleep(0.001)


# -- threads ----------------------------------------------------------------------------------------------------------


def test_threads_that_come_meanwhile_leave_together() -> None:
    store = SlowStore()
    limiter = Limiter(store)
    waiting = limiter._engine.apply.__self__.waiting  # type: ignore[attr-defined]
    first, _ = start(limiter, "first")
    store.entered.acquire()
    others = []
    for number in range(5):
        others.append(start(limiter, f"key{number}"))
        wait_for(lambda wanted=number + 1: len(waiting) == wanted)
    store.gate.release(2)
    for thread in (first, *(thread for thread, _ in others)):
        thread.join(5)
    assert store.batches == [["first"], [f"key{number}" for number in range(5)]]
    assert all(answers[0].remaining == 99 for _, answers in others)


def test_a_lone_thread_leaves_at_once_and_alone() -> None:
    store = SlowStore()
    limiter = Limiter(store)
    store.gate.release(3)
    for number in range(3):
        limiter.check(f"key{number}", "5/hour")
    assert store.batches == [["key0"], ["key1"], ["key2"]]


def test_requests_for_one_key_are_decided_in_their_order() -> None:
    store = SlowStore()
    limiter = Limiter(store)
    waiting = limiter._engine.apply.__self__.waiting  # type: ignore[attr-defined]
    first, _ = start(limiter, "other")
    store.entered.acquire()
    threads = []
    for number in range(4):
        threads.append(start(limiter, "key", "2/hour"))
        wait_for(lambda wanted=number + 1: len(waiting) == wanted)
    store.gate.release(2)
    for thread, _ in [(first, None), *threads]:
        thread.join(5)
    assert [answers[0].allowed for _, answers in threads] == [True, True, False, False]


def test_a_batch_is_bounded() -> None:
    store = SlowStore(most_members=2)
    limiter = Limiter(store)
    waiting = limiter._engine.apply.__self__.waiting  # type: ignore[attr-defined]
    threads = [start(limiter, "first")]
    store.entered.acquire()
    for number in range(5):
        threads.append(start(limiter, f"key{number}"))
        wait_for(lambda wanted=number + 1: len(waiting) == wanted)
    store.gate.release(4)
    for thread, _ in threads:
        thread.join(5)
    assert [len(batch) for batch in store.batches] == [1, 2, 2, 1]


def test_several_calls_are_under_way_at_once() -> None:
    store = SlowStore(lanes=3)
    limiter = Limiter(store)
    threads = [start(limiter, f"key{number}") for number in range(3)]
    for _ in range(3):
        assert store.entered.acquire(timeout=5)
    assert sorted(store.batches) == [["key0"], ["key1"], ["key2"]]
    store.gate.release(3)
    for thread, _ in threads:
        thread.join(5)


def test_a_thread_that_waited_its_deadline_in_the_queue_is_told() -> None:
    store = SlowStore(timeout=0.05)
    limiter = Limiter(store)
    started = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: limiter.check(f"key{number}", "5/hour"), range(4)))
    assert [answer.reason for answer in answers] == ["fail_open"] * 4
    assert time.monotonic() - started < 2.0
    assert store.inner.table.names == {}, "nothing was counted"


def test_the_queue_is_bounded() -> None:
    store = SlowStore()
    limiter = Limiter(store)
    limiter._engine.apply.__self__.most_waiting = 2  # type: ignore[attr-defined]
    waiting = limiter._engine.apply.__self__.waiting  # type: ignore[attr-defined]
    threads = [start(limiter, "first")]
    store.entered.acquire()
    for number in range(2):
        threads.append(start(limiter, f"key{number}"))
        wait_for(lambda wanted=number + 1: len(waiting) == wanted)
    assert limiter.check("too many", "5/hour").reason == "fail_open"
    store.gate.release(2)
    for thread, _ in threads:
        thread.join(5)


def test_an_error_reaches_everybody_in_the_batch_and_the_lane_is_free_again() -> None:
    store = SlowStore()
    limiter = Limiter(store, on_store_error="closed")
    store.failure = StoreError("it is broken")
    store.gate.release(10)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: limiter.check(f"key{number}", "5/hour"), range(4)))
    assert [answer.reason for answer in answers] == ["fail_closed"] * 4
    store.failure = None
    assert limiter.check("key", "5/hour").reason == "ok"


def test_a_call_that_dies_leaves_nobody_waiting() -> None:
    class Interrupted(BaseException):
        pass

    class Dying(SlowStore):
        def decide(self, batch: object) -> object:  # type: ignore[override]
            raise Interrupted

    store = Dying()
    limiter = Limiter(store)
    store.gate.release(1)
    with pytest.raises(Interrupted):
        limiter.check("key", "5/hour")
    assert limiter._engine.apply.__self__.flying == 0  # type: ignore[attr-defined]


def test_a_forked_child_starts_with_an_empty_queue() -> None:
    store = SlowStore()
    limiter = Limiter(store)
    thread, _ = start(limiter, "first")
    store.entered.acquire()
    child = os.fork()
    if child == 0:
        store.gate.release(1)
        os._exit(0 if limiter.check("child", "5/hour").reason == "ok" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.gate.release(1)
    thread.join(5)


def test_a_thread_that_is_interrupted_while_it_waits_loses_no_lane() -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    store = SlowStore()
    limiter = Limiter(store)
    first, _ = start(limiter, "first")
    store.entered.acquire()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Interrupted):
            limiter.check("interrupted", "5/hour")
    finally:
        signal.signal(signal.SIGALRM, before)
    store.gate.release(2)
    first.join(5)
    assert limiter.check("next", "5/hour").reason == "ok"
    coalescer = limiter._engine.apply.__self__  # type: ignore[attr-defined]
    assert (coalescer.flying, len(coalescer.waiting)) == (0, 0)


# -- event loops ------------------------------------------------------------------------------------------------------


def test_tasks_of_one_turn_leave_together() -> None:
    async def scenario() -> None:
        store = SlowStore()
        limiter = AsyncLimiter(store)
        tasks = [asyncio.create_task(limiter.check(f"key{n}", "5/hour")) for n in range(50)]
        await store_reached(store)
        await store.answer_all()
        assert [decision.remaining for decision in await asyncio.gather(*tasks)] == [4] * 50
        assert store.batches == [[f"key{n}" for n in range(50)]]
        assert store.connected == 1

    asyncio.run(scenario())


async def store_reached(store: SlowStore, calls: int = 1) -> None:
    for _ in range(100):
        if len(store.held) >= calls:
            return
        await asyncio.sleep(0)
    raise AssertionError("the store was not called")


def test_tasks_that_come_meanwhile_leave_when_a_lane_is_free() -> None:
    async def scenario() -> None:
        store = SlowStore(lanes=2, most_members=3)
        limiter = AsyncLimiter(store)
        tasks = []
        for n in range(9):
            tasks.append(asyncio.create_task(limiter.check(f"key{n}", "5/hour")))
            for _ in range(10):
                await asyncio.sleep(0)
        assert store.batches == [["key0"], ["key1"]], "two lanes, and both are taken"
        await store.answer_all()
        await asyncio.gather(*tasks)
        assert store.batches[2:] == [["key2", "key3", "key4"], ["key5", "key6", "key7"], ["key8"]]

    asyncio.run(scenario())


def test_a_task_cancelled_in_the_queue_was_never_there() -> None:
    async def scenario() -> None:
        store = SlowStore()
        limiter = AsyncLimiter(store)
        first = asyncio.create_task(limiter.check("first", "5/hour"))
        await store_reached(store)
        waiting = [asyncio.create_task(limiter.check(f"key{n}", "5/hour")) for n in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting[1].cancel()
        await store.answer_all()
        await asyncio.gather(first, waiting[0], waiting[2])
        assert store.batches == [["first"], ["key0", "key2"]]

    asyncio.run(scenario())


def test_what_is_decided_for_a_task_that_has_gone_is_given_back() -> None:
    async def scenario() -> None:
        store = SlowStore()
        limiter = AsyncLimiter(store)
        stays = asyncio.create_task(limiter.check("key", "5/hour", cost=1))
        goes = asyncio.create_task(limiter.check("key", "5/hour", cost=3))
        await store_reached(store)
        goes.cancel()
        await store.answer_all()
        assert (await stays).remaining == 4
        with pytest.raises(asyncio.CancelledError):
            await goes
        assert store.used("key", "5/hour") == 1

    asyncio.run(scenario())


def test_members_of_different_costs_are_given_back_what_each_has_taken() -> None:
    async def scenario() -> None:
        store = SlowStore()
        limiter = AsyncLimiter(store)
        hour = build(Limit.parse("100/hour using fixed_window"), "hour")
        earlier = [Member("dear", hour, 9), Member("cheap", hour, 9)]
        store.inner.apply([Request(Op.CHARGE, earlier)])
        members = [Member("dear", hour, 7), Member("cheap", hour, 2), Member("looked at", hour, 0)]
        goes = asyncio.create_task(limiter._apply([Request(Op.TAKE, members)]))
        await store_reached(store)
        goes.cancel()
        await store.answer_all()
        with pytest.raises(asyncio.CancelledError):
            await goes
        (standing,) = store.inner.apply([Request(Op.PEEK, [*members])])
        assert [outcome.decision.remaining for outcome in standing] == [91, 91, 100]

    asyncio.run(scenario())


def test_a_settlement_is_sent_although_its_task_is_cancelled() -> None:
    async def scenario() -> None:
        store = SlowStore()
        limiter = AsyncLimiter(store)
        entered, fails = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with limiter.reserve("key", "100/hour", cost=40):
                entered.set()
                await fails.wait()
                raise ZeroDivisionError

        holder = asyncio.create_task(hold())
        await store_reached(store)
        store.answer()
        await entered.wait()
        busy = asyncio.create_task(limiter.check("other", "5/hour"))
        await store_reached(store)
        for step in (fails.set, holder.cancel):  # it is cancelled while the give-back waits in the queue
            step()
            for _ in range(5):
                await asyncio.sleep(0)
        await store.answer_all()
        await busy
        assert store.used("key", "100/hour") == 0

    asyncio.run(scenario())


def test_what_was_reached_of_a_partial_answer_is_given_back_too() -> None:
    class HalfAway(SlowStore):
        def decide(self, batch: object) -> object:  # type: ignore[override]
            replies = self.inner.apply(batch)  # type: ignore[arg-type]
            if len(replies) == 2:
                raise PartlyAnswered([replies[0], [StoreError("away")]])
            return replies

    async def scenario() -> None:
        store = HalfAway()
        limiter = AsyncLimiter(store)
        goes = asyncio.create_task(limiter.check_many([("key", "5/hour", 3), ("away", "5/hour")]))
        await store_reached(store)
        goes.cancel()
        await store.answer_all()
        with pytest.raises(asyncio.CancelledError):
            await goes
        assert store.used("key", "5/hour") == 0

    asyncio.run(scenario())


def test_a_task_that_waited_its_deadline_in_the_queue_is_told() -> None:
    async def scenario() -> None:
        store = SlowStore(timeout=0.05)
        limiter = AsyncLimiter(store, on_store_error="closed")
        hangs = asyncio.create_task(limiter.check("first", "5/hour"))
        await store_reached(store)
        answers = await asyncio.gather(*(limiter.check(f"key{n}", "5/hour") for n in range(100)))
        assert {answer.reason for answer in answers} == {"fail_closed"}
        store.answer()
        assert (await hangs).reason == "ok"
        assert store.batches == [["first"]], "those who were told to go are not asked for any more"

    asyncio.run(scenario())


def test_a_first_connection_that_fails_is_answered_by_the_policy() -> None:
    class Away(SlowStore):
        async def connect_async(self) -> None:
            self.connected += 1
            raise StoreError("it refuses connections")

    async def scenario() -> None:
        store = Away()
        limiter = AsyncLimiter(store)
        answers = await asyncio.gather(*(limiter.check(f"key{n}", "5/hour") for n in range(3)))
        assert [answer.reason for answer in answers] == ["fail_open"] * 3
        assert store.connected == 1
        later = asyncio.create_task(limiter.check("key", "5/hour"))
        await store_reached(store)
        store.answer()
        assert (await later).reason == "ok", "the store is asked again"
        with pytest.raises(StoreError, match="refuses"):
            async with AsyncLimiter(store):
                pass

    asyncio.run(scenario())


def test_each_caller_gets_its_own_part_of_a_partial_answer() -> None:
    class HalfAway(SlowStore):
        def decide(self, batch: object) -> object:  # type: ignore[override]
            replies = self.inner.apply(batch)  # type: ignore[arg-type]
            raise PartlyAnswered([replies[0], [StoreError("away")], replies[2]])

    async def scenario() -> None:
        store = HalfAway()
        limiter = AsyncLimiter(store)
        tasks = [asyncio.create_task(limiter.check(f"key{n}", "5/hour")) for n in range(3)]
        await store_reached(store)
        store.answer()
        assert [decision.reason for decision in await asyncio.gather(*tasks)] == ["ok", "fail_open", "ok"]

    asyncio.run(scenario())


def test_one_limiter_on_two_loops() -> None:
    store = SlowStore()
    limiter = AsyncLimiter(store)

    async def scenario() -> Decision:
        task = asyncio.create_task(limiter.check("key", "5/hour"))
        await store_reached(store)
        store.answer()
        return await task

    assert [asyncio.run(scenario()).remaining for _ in range(2)] == [4, 3]
    assert store.connected == 2
    assert len(limiter._coalescers) == 1, "a loop that is over is let go"
