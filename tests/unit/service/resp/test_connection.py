"""Connections of the RESP listener, over real sockets: order, back-pressure, bounds and ends."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from crestgate.runtime.connection_budget import ConnectionBudget
from crestgate.service.resp.connection import FREE_BYTES
from crestgate.service.resp.listener import COMMAND_TIMEOUT, IDLE_TIMEOUT, UNREAD_TIMEOUT, RespListener
from crestgate.stores.port import Outcome, Request
from flaky_store import Flaky
from unit.service.grpc.transport.listener_harness import TIMEOUT, run, until
from unit.service.resp.clients import encode, service_of
from unit.service.worker import Worker

PING = encode("PING")
CHECK = encode("CL.THROTTLE", "user:42", 10**6, 10**4, 60)


class Harness:
    """A listener, and raw connections to it."""

    def __init__(self, listener: RespListener, port: int) -> None:
        self.listener = listener
        self.port = port

    async def connect(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        return reader, writer

    async def ask(self, data: bytes) -> bytes:
        """All that is answered to data, up to the end of the connection."""
        reader, writer = await self.connect(data)
        writer.write_eof()
        async with asyncio.timeout(TIMEOUT):
            received = await reader.read()
        writer.close()
        return received


@asynccontextmanager
async def open_listener(store: Any = None, budget: ConnectionBudget | None = None) -> AsyncIterator[Harness]:
    worker = await asyncio.to_thread(Worker, None, store)
    listener = RespListener(service_of(worker), budget=budget)
    listening = socket.create_server(("127.0.0.1", 0))
    listener.listen(listening)
    try:
        yield Harness(listener, listening.getsockname()[1])
        await until(lambda: not listener.connections)
    finally:
        await listener.close(0)
        await until(lambda: not listener.connections)
        assert (listener.budget.connections("resp"), listener.budget.held_bytes) == (0, 0)
        worker.catalog.close()


def on_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run_test() -> None:
        run(test)

    run_test.__name__ = test.__name__
    return run_test


@on_loop
async def test_replies_are_in_order_however_the_input_is_cut() -> None:
    names = [b"n%d" % number for number in range(2000)]
    data = b"".join(encode("ECHO", name) + (CHECK if not number % 3 else b"") for number, name in enumerate(names))
    expected = [number for number in range(2000) if not number % 3]
    rng = random.Random(1)
    async with open_listener() as harness:
        for pieces in ([data], [data[start : start + 7] for start in range(0, 3000, 7)] + [data[3003:]]):
            reader, writer = await harness.connect()
            for piece in pieces:
                writer.write(piece)
                if rng.random() < 0.1:
                    await writer.drain()
            writer.write_eof()
            received = await reader.read()
            writer.close()
            assert [name for name in names if b"$%d\r\n%b\r\n" % (len(name), name) in received] == names
            assert received.count(b"*5\r\n") == len(expected)
            assert [received.index(b"\r\n%b\r\n" % name) for name in names] == sorted(
                received.index(b"\r\n%b\r\n" % name) for name in names
            )


@on_loop
async def test_store_that_is_awaited() -> None:
    """The turn waits for it, and what comes meanwhile waits for the turn."""
    store = Flaky()  # is called in a thread
    async with open_listener(store) as harness:
        reader, writer = await harness.connect()
        for _ in range(200):
            writer.write(CHECK + PING)
            await asyncio.sleep(0)
        writer.write_eof()
        received = await reader.read()
        writer.close()
    assert received.count(b"+PONG\r\n") == 200
    assert received.count(b"*5\r\n:0\r\n") == 200
    assert received.startswith(b"*5\r\n")
    assert received.endswith(b"+PONG\r\n")


@on_loop
async def test_protocol_error_ends_the_connection_behind_what_came_before() -> None:
    async with open_listener() as harness:
        reader, writer = await harness.connect(PING + b"*1\r\n:5\r\n" + PING)
        received = await reader.read()
        writer.close()
    assert received == b"+PONG\r\n-ERR Protocol error: expected '$', got ':'\r\n"


@on_loop
async def test_browser_is_refused_at_once() -> None:
    """A page of another site can make a browser send this, and must not reach a counter."""
    body = b"CL.THROTTLE victim 0 1 3600\r\n"
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:6380\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with open_listener() as harness:
        reader, writer = await harness.connect(head + body)
        received = await reader.read()
        writer.close()
        assert received.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert received.count(b"\r\n\r\n") == 1
        assert (
            await harness.ask(encode("CL.THROTTLE", "victim", 0, 1, 3600))
            == b"*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:3600\r\n"
        )


@on_loop
async def test_quit_closes() -> None:
    async with open_listener() as harness:
        reader, writer = await harness.connect(PING + encode("QUIT") + PING)
        assert await reader.read() == b"+PONG\r\n+OK\r\n"
        writer.close()


@on_loop
async def test_peer_that_does_not_read_is_not_read_from() -> None:
    async with open_listener() as harness:
        _, writer = await harness.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # it also reads
        data = encode("ECHO", b"x" * 4000) * 50
        sent = 0
        for _ in range(400):
            writer.write(data)
            sent += len(data)
            try:
                await asyncio.wait_for(writer.drain(), 0.3)
            except TimeoutError:
                break
        (connection,) = harness.listener.connections
        assert connection.blocked_since is not None
        assert harness.listener.budget.held_bytes < 1024 * 1024
        assert sent < 40_000_000
        harness.listener.check_connections(asyncio.get_running_loop().time() + UNREAD_TIMEOUT + 1)
        await until(lambda: not harness.listener.connections)
        writer.transport.abort()


@on_loop
async def test_idle_and_unfinished_connections_are_closed_in_time() -> None:
    async with open_listener() as harness:
        listener = harness.listener
        _, idle = await harness.connect(PING)
        _, partial = await harness.connect(CHECK[:-1])
        await until(
            lambda: (
                any(one.is_partial for one in listener.connections) and any(one.served for one in listener.connections)
            )
        )
        now = asyncio.get_running_loop().time()
        listener.check_connections(now + COMMAND_TIMEOUT - 1)
        await asyncio.sleep(0.01)
        assert len(listener.connections) == 2
        listener.check_connections(now + COMMAND_TIMEOUT + 1)
        await until(lambda: len(listener.connections) == 1)
        listener.check_connections(now + IDLE_TIMEOUT + 1)
        await until(lambda: not listener.connections)
        for writer in (idle, partial):
            writer.close()


@on_loop
async def test_idle_connection_makes_room_for_a_new_one() -> None:
    """One that never sent a command goes before one that has."""
    async with open_listener(budget=ConnectionBudget(max_connections=4)) as harness:
        listener = harness.listener
        served_reader, served = await harness.connect(PING)
        assert await served_reader.readexactly(7) == b"+PONG\r\n"
        silent = [await harness.connect() for _ in range(2)]
        await until(lambda: len(listener.connections) == 3)
        for connection in listener.connections:
            connection.opened_at -= 5
        assert await harness.ask(PING) == b"+PONG\r\n"
        served.write(PING)
        assert await served_reader.readexactly(7) == b"+PONG\r\n"
        for writer in (served, *(writer for _, writer in silent)):
            writer.close()


@on_loop
async def test_memory_of_all_connections_is_bounded() -> None:
    """The one that holds most is closed, and small commands still pass."""
    unfinished = b"*3\r\n$4\r\nECHO\r\n$8000\r\n" + b"x" * 8000 + b"\r\n$8000\r\n"
    size = len(unfinished)
    async with open_listener(budget=ConnectionBudget(1000, max_bytes=size * 8)) as harness:
        writers = []
        for number in range(20):
            _, writer = await harness.connect(unfinished + b"y" * number)
            writers.append(writer)
        budget = harness.listener.budget
        await until(lambda: len(harness.listener.connections) <= 6)
        assert 0 < budget.held_bytes <= budget.max_bytes_per_listener
        assert len(PING) < FREE_BYTES
        assert await harness.ask(PING) == b"+PONG\r\n"
        for writer in writers:
            writer.transport.abort()


class BlockedStore(Flaky):
    """Answers when `proceed` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.proceed = threading.Event()

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        self.proceed.wait(TIMEOUT)
        return super().apply(batch)


@on_loop
async def test_shutdown_answers_what_was_received() -> None:
    store = BlockedStore()
    async with open_listener(store) as harness:
        reader, writer = await harness.connect(CHECK)
        await until(lambda: any(not one.is_idle for one in harness.listener.connections))
        _, idle = await harness.connect()
        await until(lambda: len(harness.listener.connections) == 2)
        closing = asyncio.create_task(harness.listener.close(TIMEOUT))
        await until(lambda: len(harness.listener.connections) == 1)
        store.proceed.set()
        await closing
        assert await reader.read() == b"*5\r\n:0\r\n:1000001\r\n:1000000\r\n:-1\r\n:1\r\n"
        for one in (writer, idle):
            one.close()


@on_loop
async def test_peer_that_leaves_is_counted_all_the_same() -> None:
    store = BlockedStore()
    async with open_listener(store) as harness:
        _, writer = await harness.connect(CHECK)
        await until(lambda: any(not one.is_idle for one in harness.listener.connections))
        writer.transport.abort()
        store.proceed.set()
        await until(lambda: not harness.listener.connections)
        assert await harness.ask(CHECK) == b"*5\r\n:0\r\n:1000001\r\n:999999\r\n:-1\r\n:1\r\n"


@on_loop
async def test_random_input_never_breaks_the_listener() -> None:
    rng = random.Random(6380)
    commands = [PING, CHECK, encode("HELLO", 3), encode("RL.CHECK", "k", "5/min"), encode("INFO"), b"PING\r\n", b"\r\n"]
    async with open_listener() as harness:
        for _ in range(150):
            data = bytearray(b"".join(rng.choices(commands, k=rng.randint(1, 30))))
            for _ in range(rng.randint(0, 4)):
                place = rng.randrange(len(data))
                data[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
            reader, writer = await harness.connect()
            cut = rng.randint(0, len(data))
            writer.write(bytes(data[:cut]))
            await asyncio.sleep(0)
            writer.write(bytes(data[cut:]))
            writer.write_eof()
            async with asyncio.timeout(TIMEOUT):
                with suppress(OSError):  # it was closed with input unread
                    await reader.read()
            writer.close()
        assert await harness.ask(PING) == b"+PONG\r\n"


def test_unhandled_errors_are_none(caplog: pytest.LogCaptureFixture) -> None:
    test_random_input_never_breaks_the_listener()
    assert "unhandled error" not in caplog.text
