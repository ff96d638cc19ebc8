"""A blocking store on an event loop: every caller is told once, by the deadline, and the loop never waits."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from headgate.errors import StoreClosed, StoreError
from headgate.stores.port import Op, Replies, Request
from headgate.stores.threaded import ThreadedStore

PATIENCE = 10.0


class Blocking(ThreadedStore):
    """Does in its threads what a test says."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__("blocking")
        self.work = work
        self.calls = 0
        self.timeout = PATIENCE

    def connect(self) -> None:
        self.work()

    def call(self, batch: Sequence[Request], deadline: float) -> Replies:
        self.calls += 1
        self.work()
        return [[] for _ in batch]


def waited(event: threading.Event) -> None:
    event.wait(PATIENCE)


async def begun(store: ThreadedStore, seconds: float = PATIENCE) -> list[Replies | StoreError]:
    """All that the store tells about one batch, once the first was told and a little later."""
    told: list[Replies | StoreError] = []
    first = asyncio.Event()

    def done(answer: Replies | StoreError) -> None:
        told.append(answer)
        first.set()

    store.begin([Request(Op.TAKE, [])], time.monotonic() + seconds, done)
    assert told == [], "not before begin has returned"
    await asyncio.wait_for(first.wait(), PATIENCE)
    return told


def test_an_answer_is_delivered_on_the_loop() -> None:
    async def main() -> None:
        store = Blocking(lambda: None)
        assert await begun(store) == [[[]]]
        await store.connect_async()
        store.close()

    asyncio.run(main())


def test_a_closed_store_makes_no_threads() -> None:
    async def main() -> None:
        store = Blocking(lambda: None)
        await begun(store)
        store.close()
        (told,) = await begun(store)
        assert isinstance(told, StoreClosed)
        with pytest.raises(StoreClosed, match="blocking: this store is closed"):
            await store.connect_async()
        assert store.threads.executor is None
        assert store.calls == 1

    asyncio.run(main())


def test_errors_are_answers() -> None:
    def refuse() -> None:
        raise StoreError("away")

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    async def main() -> None:
        (told,) = await begun(Blocking(refuse))
        assert isinstance(told, StoreError)
        assert str(told) == "away"
        (told,) = await begun(Blocking(fail))
        assert isinstance(told, StoreError)
        assert str(told) == "ZeroDivisionError: a bug"
        with pytest.raises(StoreError, match="away"):
            await Blocking(refuse).connect_async()

    asyncio.run(main())


def test_a_stuck_thread_is_given_up_at_the_deadline_and_its_late_answer_dropped() -> None:
    release = threading.Event()

    async def main() -> None:
        store = Blocking(lambda: waited(release))
        told = await begun(store, 0.02)
        assert isinstance(told[0], StoreError)
        assert "no answer in time" in str(told[0])
        release.set()
        store.threads.pool(1).shutdown(wait=True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(told) == 1

    asyncio.run(main())


def test_what_was_given_up_before_a_thread_was_free_is_never_asked() -> None:
    release = threading.Event()

    async def main() -> None:
        store = Blocking(lambda: waited(release))
        store.lanes = 1
        await asyncio.gather(begun(store, 0.02), begun(store, 0.02))
        release.set()
        store.threads.pool(1).shutdown(wait=True)
        assert store.calls == 1

    asyncio.run(main())


def test_a_loop_that_is_closed_meanwhile_breaks_nothing() -> None:
    release, finished = threading.Event(), threading.Event()
    told: list[object] = []

    store = Blocking(lambda: waited(release))

    async def main() -> None:
        store.begin([Request(Op.TAKE, [])], time.monotonic() + PATIENCE, told.append)

    asyncio.run(main())
    release.set()
    store.threads.pool(4).submit(finished.set)
    assert finished.wait(PATIENCE)
    store.close()
    assert told == []


def test_a_forked_child_makes_threads_of_its_own() -> None:
    store = Blocking(lambda: None)
    asyncio.run(begun(store))
    child = os.fork()
    if child == 0:
        told: list[Replies | StoreError] = []
        try:
            told = asyncio.run(begun(store))
        finally:
            os._exit(0 if told == [[[]]] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
