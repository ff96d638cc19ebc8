"""Streaming calls are bounded, and the tasks of a closed connection are cancelled a few at a time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from crestgate.runtime.scheduler import CANCELLED_PER_TURN, Scheduler
from crestgate.service.grpc.transport import connection, frames
from crestgate.service.grpc.transport.call import RpcStatus
from crestgate.service.grpc.transport.connection import MAX_STREAMING_CALLS
from unit.service.grpc.transport.listener_harness import open_listener, run, until
from unit.service.grpc.transport.raw_client import RawClient

OK = 0
EXHAUSTED = int(RpcStatus.RESOURCE_EXHAUSTED)


def test_streaming_calls_of_a_connection_are_bounded() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            calls = [raw.call(b"/t.T/Unread") for _ in range(MAX_STREAMING_CALLS)]
            refused = await raw.response(raw.call(b"/t.T/Unread"))
            assert refused.status == EXHAUSTED
            assert refused.message.startswith("too many streaming calls are open")
            assert (await raw.response(raw.call(b"/t.T/Async", b"x"))).status == OK
            other = await RawClient.open(listener.port)
            assert (await other.response(other.call(b"/t.T/First", b"x"))).status == OK
            raw.send(*[frames.rst_stream(number, frames.CANCEL) for number in calls[:2]])
            assert (await raw.response(raw.call(b"/t.T/First", b"x"))).status == OK
            listener.handlers.proceed.set()
            assert [(await raw.response(number)).status for number in calls[2:]] == [OK] * (MAX_STREAMING_CALLS - 2)
            assert listener.streaming_calls == 0

    run(test)


def test_streaming_calls_of_a_worker_are_bounded_beyond_one_per_create_connection() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            listener.streaming_calls += connection.MAX_WORKER_STREAMING_CALLS - 2
            raw = await RawClient.open(listener.port)
            for _ in range(2):
                raw.call(b"/t.T/Unread")
            assert (await raw.response(raw.call(b"/t.T/Unread"))).status == EXHAUSTED
            other = await RawClient.open(listener.port)
            other.call(b"/t.T/Unread")
            assert (await other.response(other.call(b"/t.T/Unread"))).status == EXHAUSTED
            raw.abort()
            other.abort()
            await until(lambda: not listener.connections)
            assert listener.streaming_calls == connection.MAX_WORKER_STREAMING_CALLS - 2

    run(test)


def test_tasks_of_closed_connections_are_cancelled_a_few_per_turn() -> None:
    """A cancelled task runs once more, in the next turn: the tasks of one connection must not all run in one turn."""
    count = 1000

    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            for _ in range(count):
                raw.call(b"/t.T/Waits")
            await until(lambda: listener.handlers.started == count)
            raw.abort()
            cancelled_counts = [0]
            async with asyncio.timeout(20):
                while cancelled_counts[-1] < count:
                    await asyncio.sleep(0)
                    cancelled_counts.append(listener.handlers.cancelled)
            steps = [after - before for before, after in pairwise(cancelled_counts)]
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
