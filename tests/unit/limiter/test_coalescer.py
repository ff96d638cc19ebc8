"""Batching of concurrent requests to a remote store: order, bounds, deadlines, cancellation."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from crestgate import AsyncLimiter, Decision, Limit, Limiter, StoreError
from crestgate.core.algorithms import build
from crestgate.limiter.thread_coalescer import ThreadCoalescer
from crestgate.stores.port import BatchCallback, Member, Op, PartialStoreError, Request
from slow_store import SlowStore
from stalls import Stalls


def start(limiter: Limiter, key: str, limit: str = "100/hour") -> tuple[threading.Thread, list[Decision]]:
    answers: list[Decision] = []
    thread = threading.Thread(target=lambda: answers.append(limiter.check(key, limit)))
    thread.start()
    return thread, answers


def coalescer_of(limiter: Limiter) -> ThreadCoalescer:
    assert limiter.backend.coalescer is not None
    return limiter.backend.coalescer


def wait_for(condition: object, seconds: float = 5.0) -> None:
    """Threads have no virtual time: wait until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.001)


# -- threads ----------------------------------------------------------------------------------------------------------


def test_waiting_threads_share_a_batch() -> None:
    store = SlowStore()
    limiter = Limiter(store)
    waiting = coalescer_of(limiter).waiting
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


def test_lone_thread_is_sent_immediately() -> None:
    store = SlowStore()
    limiter = Limiter(store)
    store.gate.release(3)
    for number in range(3):
        limiter.check(f"key{number}", "5/hour")
    assert store.batches == [["key0"], ["key1"], ["key2"]]


def test_requests_for_one_key_keep_their_order() -> None:
    store = SlowStore()
    limiter = Limiter(store)
    waiting = coalescer_of(limiter).waiting
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


def test_batch_size_is_bounded() -> None:
    store = SlowStore(max_members=2)
    limiter = Limiter(store)
    waiting = coalescer_of(limiter).waiting
    threads = [start(limiter, "first")]
    store.entered.acquire()
    for number in range(5):
        threads.append(start(limiter, f"key{number}"))
        wait_for(lambda wanted=number + 1: len(waiting) == wanted)
    store.gate.release(4)
    for thread, _ in threads:
        thread.join(5)
    assert [len(batch) for batch in store.batches] == [1, 2, 2, 1]


def test_calls_use_several_lanes() -> None:
    store = SlowStore(max_concurrent_batches=3)
    limiter = Limiter(store)
    threads = [start(limiter, f"key{number}") for number in range(3)]
    for _ in range(3):
        assert store.entered.acquire(timeout=5)
    assert sorted(store.batches) == [["key0"], ["key1"], ["key2"]]
    store.gate.release(3)
    for thread, _ in threads:
        thread.join(5)


def test_thread_times_out_in_the_queue(stalls: Stalls) -> None:
    store = SlowStore(timeout=0.05)
    limiter = Limiter(store)
    started = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: limiter.check(f"key{number}", "5/hour"), range(4)))
    assert [answer.reason for answer in answers] == ["fail_open"] * 4
    assert stalls.without(started, time.monotonic()) < 2.0
    assert store.inner.table.names == {}, "nothing was counted"


def test_queue_length_is_bounded() -> None:
    store = SlowStore()
    limiter = Limiter(store)
    coalescer_of(limiter).max_waiting = 2
    waiting = coalescer_of(limiter).waiting
    threads = [start(limiter, "first")]
    store.entered.acquire()
    for number in range(2):
        threads.append(start(limiter, f"key{number}"))
        wait_for(lambda wanted=number + 1: len(waiting) == wanted)
    assert limiter.check("too many", "5/hour").reason == "fail_open"
    store.gate.release(2)
    for thread, _ in threads:
        thread.join(5)


def test_error_reaches_the_whole_batch_and_frees_the_lane() -> None:
    store = SlowStore()
    limiter = Limiter(store, on_store_error="closed")
    store.failure = StoreError("it is broken")
    store.gate.release(10)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: limiter.check(f"key{number}", "5/hour"), range(4)))
    assert [answer.reason for answer in answers] == ["fail_closed"] * 4
    store.failure = None
    assert limiter.check("key", "5/hour").reason == "ok"


def test_unexpected_error_leaves_nobody_waiting() -> None:
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
    assert coalescer_of(limiter).in_flight == 0


def test_forked_child_starts_with_an_empty_queue() -> None:
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


def test_interrupted_thread_frees_its_lane() -> None:
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
    coalescer = coalescer_of(limiter)
    assert (coalescer.in_flight, len(coalescer.waiting)) == (0, 0)


# -- event loops ------------------------------------------------------------------------------------------------------


def test_tasks_of_one_iteration_share_a_batch() -> None:
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


def test_waiting_tasks_are_sent_when_a_lane_is_free() -> None:
    async def scenario() -> None:
        store = SlowStore(max_concurrent_batches=2, max_members=3)
        limiter = AsyncLimiter(store)
        tasks = []
        for n in range(9):
            tasks.append(asyncio.create_task(limiter.check(f"key{n}", "5/hour")))
            for _ in range(10):
                await asyncio.sleep(0)
        assert store.batches == [["key0"], ["key1"]], "two max_concurrent_batches, and both are busy"
        await store.answer_all()
        await asyncio.gather(*tasks)
        assert store.batches[2:] == [["key2", "key3", "key4"], ["key5", "key6", "key7"], ["key8"]]

    asyncio.run(scenario())


def test_sequence_is_sent_without_another_iteration() -> None:
    async def scenario() -> None:
        store = SlowStore(max_concurrent_batches=4)
        limiter = AsyncLimiter(store)
        for number in range(2):
            task = asyncio.create_task(limiter.check(f"key{number}", "5/hour"))
            await store_reached(store)
            await store.answer_all()
            await task
        following = asyncio.create_task(limiter.check("key2", "5/hour"))
        others = [asyncio.create_task(limiter.check(f"key{n}", "5/hour")) for n in range(3, 6)]
        await asyncio.sleep(0)
        assert store.batches[2:] == [["key2"]], "sent by the task itself"
        await store_reached(store, 2)
        assert store.batches[3:] == [["key3", "key4", "key5"]]
        await store.answer_all()
        await asyncio.gather(following, *others)
        tasks = [asyncio.create_task(limiter.check(f"key{n}", "5/hour")) for n in range(6, 9)]
        await store_reached(store)
        assert store.batches[4:] == [["key6", "key7", "key8"]], "there were several at once"
        await store.answer_all()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


@pytest.mark.parametrize(("keys", "batches"), [(8, 2), (4, 1)])
def test_requests_for_the_same_counters_share_a_batch_of_a_store_with_locks(keys: int, batches: int) -> None:
    async def scenario() -> None:
        store = SlowStore(max_concurrent_batches=4)
        store.min_shared_batch, store.locks_counters = 4, True
        limiter = AsyncLimiter(store)
        tasks = [asyncio.create_task(limiter.check(f"key{n % keys}", "5/hour")) for n in range(8)]
        await store_reached(store, batches)
        assert len(store.batches) == batches
        assert [key for batch in store.batches for key in batch] == [f"key{n % keys}" for n in range(8)]
        await store.answer_all()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_task_cancelled_in_the_queue_is_never_sent() -> None:
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


def test_cost_of_a_cancelled_task_is_given_back() -> None:
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


def test_members_get_back_their_own_costs() -> None:
    async def scenario() -> None:
        store = SlowStore()
        limiter = AsyncLimiter(store)
        hour = build(Limit.parse("100/hour using fixed_window"), "hour")
        earlier = [Member("dear", hour, 9), Member("cheap", hour, 9)]
        store.inner.apply([Request(Op.CHARGE, earlier)])
        members = [Member("dear", hour, 7), Member("cheap", hour, 2), Member("looked at", hour, 0)]
        goes = asyncio.create_task(limiter.apply([Request(Op.TAKE, members)]))
        await store_reached(store)
        goes.cancel()
        await store.answer_all()
        with pytest.raises(asyncio.CancelledError):
            await goes
        (standing,) = store.inner.apply([Request(Op.PEEK, [*members])])
        assert [outcome.decision.remaining for outcome in standing] == [91, 91, 100]

    asyncio.run(scenario())


def test_settlement_is_sent_although_its_task_is_cancelled() -> None:
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


def test_decided_part_of_a_partial_result_is_given_back() -> None:
    class HalfAway(SlowStore):
        def decide(self, batch: object) -> object:  # type: ignore[override]
            replies = self.inner.apply(batch)  # type: ignore[arg-type]
            if len(replies) == 2:
                raise PartialStoreError([replies[0], [StoreError("away")]])
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


def test_task_times_out_in_the_queue() -> None:
    async def scenario() -> None:
        store = SlowStore(timeout=0.05)
        limiter = AsyncLimiter(store, on_store_error="closed")
        hangs = asyncio.create_task(limiter.check("first", "5/hour"))
        await store_reached(store)
        answers = await asyncio.gather(*(limiter.check(f"key{n}", "5/hour") for n in range(100)))
        assert {answer.reason for answer in answers} == {"fail_closed"}
        store.answer()
        assert (await hangs).reason == "ok"
        assert store.batches == [["first"]], "timed-out members are not sent"

    asyncio.run(scenario())


def test_failed_first_connection_is_answered_by_the_policy() -> None:
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
        assert (await later).reason == "ok", "the store is tried again"
        with pytest.raises(StoreError, match="refuses"):
            async with AsyncLimiter(store):
                pass

    asyncio.run(scenario())


def test_each_caller_gets_its_own_part_of_a_partial_result() -> None:
    class HalfAway(SlowStore):
        def decide(self, batch: object) -> object:  # type: ignore[override]
            replies = self.inner.apply(batch)  # type: ignore[arg-type]
            raise PartialStoreError([replies[0], [StoreError("away")], replies[2]])

    async def scenario() -> None:
        store = HalfAway()
        limiter = AsyncLimiter(store)
        tasks = [asyncio.create_task(limiter.check(f"key{n}", "5/hour")) for n in range(3)]
        await store_reached(store)
        store.answer()
        assert [decision.reason for decision in await asyncio.gather(*tasks)] == ["ok", "fail_open", "ok"]

    asyncio.run(scenario())


def test_limiter_on_two_event_loops() -> None:
    store = SlowStore()
    limiter = AsyncLimiter(store)

    async def scenario() -> Decision:
        task = asyncio.create_task(limiter.check("key", "5/hour"))
        await store_reached(store)
        store.answer()
        return await task

    assert [asyncio.run(scenario()).remaining for _ in range(2)] == [4, 3]
    assert store.connected == 1, "on the second loop, requests open their connections by their own deadlines"


def test_first_check_on_another_loop_has_a_deadline() -> None:
    """The first connection of all may take seconds (tables are created). That of a later loop, after a fork for
    example, is the check's own, and its deadline holds."""

    class Hung(SlowStore):
        async def connect_async(self) -> None:
            if self.connected:
                await asyncio.sleep(30)
            self.connected += 1

        def begin(self, batch: Sequence[Request], deadline: float, done: BatchCallback) -> None:
            asyncio.get_running_loop().call_at(deadline, done, StoreError("it did not answer in time"))

    store = Hung(timeout=0.1)
    limiter = AsyncLimiter(store)
    asyncio.run(limiter.connect())

    async def scenario() -> Decision:
        return await asyncio.wait_for(limiter.check("key", "5/hour"), 10)

    assert asyncio.run(scenario()).reason == "fail_open"
    assert len(limiter.driver.coalescers) == 1, "a closed loop is released"
