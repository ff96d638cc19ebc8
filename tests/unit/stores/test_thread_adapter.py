"""A blocking store on an event loop: each caller gets one result by its deadline, and the loop never blocks."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from crestgate.errors import StoreClosedError, StoreError
from crestgate.stores.port import BatchOutcomes, Op, Request
from crestgate.stores.thread_adapter import PendingBatch, ThreadedStore

PATIENCE = 10.0


class Blocking(ThreadedStore):
    """Runs a test's function in its threads."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__("blocking")
        self.work = work
        self.calls = 0
        self.timeout = PATIENCE

    def connect(self) -> None:
        self.work()

    def call(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        self.calls += 1
        self.work()
        return [[] for _ in batch]


def wait_for(event: threading.Event) -> None:
    event.wait(PATIENCE)


async def results_of(store: ThreadedStore, seconds: float = PATIENCE) -> list[BatchOutcomes | StoreError]:
    """The results of one batch, after the first has arrived."""
    results: list[BatchOutcomes | StoreError] = []
    first = asyncio.Event()

    def done(answer: BatchOutcomes | StoreError) -> None:
        results.append(answer)
        first.set()

    store.begin([Request(Op.TAKE, [])], time.monotonic() + seconds, done)
    assert results == [], "not before begin has returned"
    await asyncio.wait_for(first.wait(), PATIENCE)
    return results


def test_result_is_delivered_on_the_loop() -> None:
    async def main() -> None:
        store = Blocking(lambda: None)
        assert await results_of(store) == [[[]]]
        await store.connect_async()
        store.close()

    asyncio.run(main())


def test_closed_store_starts_no_threads() -> None:
    async def main() -> None:
        store = Blocking(lambda: None)
        await results_of(store)
        store.close()
        (results,) = await results_of(store)
        assert isinstance(results, StoreClosedError)
        with pytest.raises(StoreClosedError, match="blocking: this store is closed"):
            await store.connect_async()
        assert store.threads.executor is None
        assert store.calls == 1

    asyncio.run(main())


def test_errors_are_results() -> None:
    def refuse() -> None:
        raise StoreError("away")

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    async def main() -> None:
        (results,) = await results_of(Blocking(refuse))
        assert isinstance(results, StoreError)
        assert str(results) == "away"
        (results,) = await results_of(Blocking(fail))
        assert isinstance(results, StoreError)
        assert str(results) == "ZeroDivisionError: a bug"
        with pytest.raises(StoreError, match="away"):
            await Blocking(refuse).connect_async()

    asyncio.run(main())


def test_stuck_thread_times_out_and_its_late_result_is_dropped() -> None:
    release = threading.Event()

    async def main() -> None:
        store = Blocking(lambda: wait_for(release))
        results = await results_of(store, 0.02)
        assert isinstance(results[0], StoreError)
        assert "no answer in time" in str(results[0])
        release.set()
        store.threads.pool(1).shutdown(wait=True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(results) == 1

    asyncio.run(main())


def test_batch_that_timed_out_in_the_queue_is_never_sent() -> None:
    release = threading.Event()

    async def main() -> None:
        store = Blocking(lambda: wait_for(release))
        store.max_concurrent_batches = 1
        await asyncio.gather(results_of(store, 0.02), results_of(store, 0.02))
        release.set()
        store.threads.pool(1).shutdown(wait=True)
        assert store.calls == 1

    asyncio.run(main())


def test_closed_loop_breaks_nothing() -> None:
    release, finished = threading.Event(), threading.Event()
    results: list[object] = []

    store = Blocking(lambda: wait_for(release))

    async def main() -> None:
        store.begin([Request(Op.TAKE, [])], time.monotonic() + PATIENCE, results.append)

    asyncio.run(main())
    release.set()
    store.threads.pool(4).submit(finished.set)
    assert finished.wait(PATIENCE)
    store.close()
    assert results == []


def test_forked_child_starts_its_own_threads() -> None:
    store = Blocking(lambda: None)
    asyncio.run(results_of(store))
    child = os.fork()
    if child == 0:
        results: list[BatchOutcomes | StoreError] = []
        try:
            results = asyncio.run(results_of(store))
        finally:
            os._exit(0 if results == [[[]]] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_result_that_the_loop_has_not_read_yet_is_not_late() -> None:
    async def main() -> list[BatchOutcomes | StoreError]:
        results: list[BatchOutcomes | StoreError] = []
        pending = PendingBatch(asyncio.get_running_loop(), results.append, "blocking")
        thread = threading.Thread(target=pending.set_result, args=([[]],))
        thread.start()
        thread.join()
        pending.time_out()  # some loops call timers before what other threads have scheduled
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return results

    assert asyncio.run(main()) == [[[]]]
