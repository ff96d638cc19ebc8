"""Streaming calls are bounded, and the tasks of a closed connection are cancelled a few at a time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from headgate.service.rpc import connection, frames
from headgate.service.rpc.call import Status
from headgate.service.rpc.connection import MAX_STREAMING_CALLS
from headgate.service.rpc.scheduler import CANCELLED_PER_TURN, Scheduler
from unit.service.rpc.house import house, run, until
from unit.service.rpc.raw_client import Raw

OK = 0
EXHAUSTED = int(Status.RESOURCE_EXHAUSTED)


def test_streaming_calls_of_a_connection_are_bounded() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            calls = [raw.call(b"/t.T/Deaf") for _ in range(MAX_STREAMING_CALLS)]
            refused = await raw.answer(raw.call(b"/t.T/Deaf"))
            assert refused.status == EXHAUSTED
            assert refused.told.startswith("too many streaming calls are open")
            assert (await raw.answer(raw.call(b"/t.T/InTime", b"x"))).status == OK
            other = await Raw.open(listener.port)
            assert (await other.answer(other.call(b"/t.T/First", b"x"))).status == OK
            raw.send(*[frames.reset(number, frames.CANCEL) for number in calls[:2]])
            assert (await raw.answer(raw.call(b"/t.T/First", b"x"))).status == OK
            listener.did.go_on.set()
            assert [(await raw.answer(number)).status for number in calls[2:]] == [OK] * (MAX_STREAMING_CALLS - 2)
            assert listener.streaming_calls == 0

    run(test)


def test_streaming_calls_of_a_worker_are_bounded_beyond_one_per_connection() -> None:
    async def test() -> None:
        async with house() as listener:
            listener.streaming_calls += connection.MAX_WORKER_STREAMING_CALLS - 2
            raw = await Raw.open(listener.port)
            for _ in range(2):
                raw.call(b"/t.T/Deaf")
            assert (await raw.answer(raw.call(b"/t.T/Deaf"))).status == EXHAUSTED
            other = await Raw.open(listener.port)
            other.call(b"/t.T/Deaf")
            assert (await other.answer(other.call(b"/t.T/Deaf"))).status == EXHAUSTED
            raw.cut()
            other.cut()
            await until(lambda: not listener.connections)
            assert listener.streaming_calls == connection.MAX_WORKER_STREAMING_CALLS - 2

    run(test)


def test_tasks_of_closed_connections_are_cancelled_a_few_per_turn() -> None:
    """A cancelled task runs once more, in the next turn: what one connection has open must not be one turn's work."""
    count = 1000

    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            for _ in range(count):
                raw.call(b"/t.T/Waits")
            await until(lambda: listener.did.begun == count)
            raw.cut()
            seen = [0]
            async with asyncio.timeout(20):
                while seen[-1] < count:
                    await asyncio.sleep(0)
                    seen.append(listener.did.cancelled)
            steps = [after - before for before, after in pairwise(seen)]
            assert max(steps) <= CANCELLED_PER_TURN

    run(test)


def test_scheduler_cancels_all_that_it_was_given() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        scheduler = Scheduler(loop)
        tasks = [loop.create_task(asyncio.sleep(60)) for _ in range(3 * CANCELLED_PER_TURN)]
        for task in tasks:
            scheduler.cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)

    run(test)
