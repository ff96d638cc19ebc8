"""Slow clients: connections with an incomplete request or an unread response are closed.

Over real sockets, on one event loop; time is passed to `ConnectionTimeouts` as an argument.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest
import uvicorn

from crestgate.service.http.fast_path import FastConnection
from crestgate.service.http.flow_control import MAX_TURN_WORK
from crestgate.service.http.protocol import MAX_REQUEST_SECONDS, MAX_UNREAD_SECONDS, ConnectionTimeouts, HttpConnection

REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody"
LARGE = 8 * 1024 * 1024


class ServerHarness:
    """A server's address, connections and timeouts."""

    def __init__(self, address: tuple[str, int], connections: set[Any]) -> None:
        self.address = address
        self.connections = connections
        self.timeouts = ConnectionTimeouts(connections)
        self.release = asyncio.Event()
        self.reading = asyncio.Event()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        before = len(self.connections)
        streams = await asyncio.open_connection(*self.address)
        await until(lambda: len(self.connections) > before)
        return streams

    def look(self, later: float) -> None:
        """Check the timeouts as if `later` seconds had passed."""
        self.timeouts.close_timed_out(monotonic() + later)


class Application:
    """An application with fast paths that never respond: every request takes the ASGI path."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.fast_paths = {b"/": None, b"/wait": None}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    def respond(self, *_: Any) -> None:
        return None


@asynccontextmanager
async def serving(kind: type[HttpConnection]) -> AsyncIterator[ServerHarness]:
    """A server whose application reads the body; `/large` gets a large response, `/wait` one after `release`."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        harness.reading.set()
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
        if scope["path"] == "/wait":
            await harness.release.wait()
        body = b"x" * LARGE if scope["path"] == "/large" else b"fine"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
        await send({"type": "http.response.body", "body": body[len(body) // 2 :]})

    server = uvicorn.Server(
        uvicorn.Config(
            Application(app),
            http=kind,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            proxy_headers=False,
        )
    )
    server.config.load()
    listening = socket.create_server(("127.0.0.1", 0))
    server.lifespan = server.config.lifespan_class(server.config)
    harness = ServerHarness(listening.getsockname()[:2], server.server_state.connections)
    await server.startup([listening])
    try:
        yield harness
    finally:
        server.force_exit = True
        await server.shutdown([listening])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


def run(test: Callable[[ServerHarness], Awaitable[None]]) -> None:
    """Run the test with both kinds of connection."""

    async def run_test(kind: type[HttpConnection]) -> None:
        async with asyncio.timeout(60), serving(kind) as harness:
            await test(harness)

    for kind in (HttpConnection, FastConnection):
        asyncio.run(run_test(kind))


def status_of(response: bytes) -> int:
    return int(response.split(b" ", 2)[1])


@pytest.mark.parametrize("part", [b"", REQUEST[:1], REQUEST[:20], REQUEST[:-4], REQUEST[:-1]])
def test_incomplete_request_times_out(part: bytes) -> None:
    async def test(harness: ServerHarness) -> None:
        reader, writer = await harness.connect()
        writer.write(part)
        await until(lambda: next(iter(harness.connections)).parsed >= len(part))
        harness.look(MAX_REQUEST_SECONDS - 5)
        assert len(harness.connections) == 1
        harness.look(MAX_REQUEST_SECONDS + 5)
        response = await reader.read()
        assert status_of(response) == 408
        problem = json.loads(response.partition(b"\r\n\r\n")[2])
        assert problem["detail"] == "request timeout: not fully received within 20 s"
        await until(lambda: not harness.connections)

    run(test)


def test_complete_request_does_not_time_out() -> None:
    async def test(harness: ServerHarness) -> None:
        reader, writer = await harness.connect()
        writer.write(REQUEST.replace(b"/", b"/wait", 1))
        await harness.reading.wait()
        harness.look(1000)
        harness.release.set()
        assert (await reader.readuntil(b"fine")).startswith(b"HTTP/1.1 200")
        harness.look(1000)
        writer.write(REQUEST)
        assert (await reader.readuntil(b"fine")).startswith(b"HTTP/1.1 200")

    run(test)


def test_incomplete_request_keeps_the_response_of_the_previous_one() -> None:
    async def test(harness: ServerHarness) -> None:
        reader, writer = await harness.connect()
        writer.write(REQUEST.replace(b"/", b"/wait", 1) + REQUEST[:30])
        await harness.reading.wait()
        harness.look(1000)
        harness.release.set()
        response = await reader.read()
        assert status_of(response) == 200
        assert response.endswith(b"fine")

    run(test)


def test_incomplete_pipelined_body_ends_after_the_previous_response() -> None:
    async def test(harness: ServerHarness) -> None:
        reader, writer = await harness.connect()
        writer.write(REQUEST.replace(b"/", b"/wait", 1) + REQUEST[:-1])
        await harness.reading.wait()
        harness.look(1000)
        harness.release.set()
        assert (await reader.readuntil(b"fine")).startswith(b"HTTP/1.1 200")
        harness.look(1000)
        assert status_of(await reader.read()) == 408

    run(test)


def test_unread_response_closes_the_connection() -> None:
    async def test(harness: ServerHarness) -> None:
        reader, writer = await asyncio.open_connection(*harness.address, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: any(connection.unread_since is not None for connection in harness.connections))
        harness.look(MAX_UNREAD_SECONDS - 5)
        assert len(harness.connections) == 1
        harness.look(MAX_UNREAD_SECONDS + 5)
        await until(lambda: not harness.connections)
        writer.close()
        assert reader.at_eof() is False

    run(test)


def test_slow_reader_gets_the_whole_response() -> None:
    async def test(harness: ServerHarness) -> None:
        reader, writer = await asyncio.open_connection(*harness.address, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await until(lambda: any(connection.unread_since is not None for connection in harness.connections))
        assert len(await reader.read()) > LARGE
        assert all(connection.unread_since is None for connection in harness.connections)

    run(test)


def test_requests_wait_until_the_one_before_them_is_answered() -> None:
    async def test(harness: ServerHarness) -> None:
        reader, writer = await harness.connect()
        writer.write(REQUEST.replace(b"/", b"/wait", 1))
        await harness.reading.wait()
        writer.write(REQUEST * 100)
        (connection,) = harness.connections
        await until(lambda: bool(connection.pending))
        assert not connection.pipeline
        assert connection.flow.read_paused
        assert connection.budget.held_bytes == len(connection.pending)
        harness.release.set()
        for _ in range(101):
            assert (await reader.readuntil(b"fine")).startswith(b"HTTP/1.1 200")
        await until(lambda: not connection.pending)
        assert not connection.flow.read_paused
        assert connection.budget.held_bytes == 0

    run(test)


def test_pending_requests_are_answered_before_the_connection_ends() -> None:
    async def test(harness: ServerHarness) -> None:
        reader, writer = await harness.connect()
        writer.write(REQUEST.replace(b"/", b"/wait", 1))
        await harness.reading.wait()
        writer.write(REQUEST * 3)
        (connection,) = harness.connections
        await until(lambda: bool(connection.pending))
        connection.shutdown()
        harness.release.set()
        response = await reader.read()
        assert response.count(b"fine") == 4

    run(test)


def test_held_bytes_are_counted_until_the_connection_ends() -> None:
    async def test(harness: ServerHarness) -> None:
        _, writer = await harness.connect()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 500000\r\n\r\n" + b"x" * 400_000)
        (connection,) = harness.connections
        await until(lambda: connection.budget.held_bytes >= 400_000 and not connection.pending)
        assert connection.budget.held_bytes < 420_000
        writer.close()
        await until(lambda: not harness.connections)
        assert connection.budget.held_bytes == 0

    run(test)


def test_request_beyond_the_memory_budget_is_refused() -> None:
    async def test(harness: ServerHarness) -> None:
        reader, writer = await harness.connect()
        (connection,) = harness.connections
        connection.budget.max_bytes = 300_000
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 500000\r\n\r\n" + b"x" * 400_000)
        response = await reader.read()
        assert status_of(response) == 503
        await until(lambda: not harness.connections)
        assert connection.budget.held_bytes == 0

    run(test)


def test_unread_connection_is_closed_when_memory_is_short() -> None:
    async def test(harness: ServerHarness) -> None:
        _, writer = await asyncio.open_connection(*harness.address, limit=1024)
        await until(lambda: len(harness.connections) == 1)
        (connection,) = harness.connections
        connection.budget.max_bytes = 1_000
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: not harness.connections)
        assert connection.budget.held_bytes == 0
        writer.close()

    run(test)


def test_one_turn_of_the_loop_processes_few_requests() -> None:
    async def test(harness: ServerHarness) -> None:
        reader, writer = await harness.connect()
        (connection,) = harness.connections
        taken: list[int] = []
        consume = connection.consume

        def counting(data: bytes, start: int) -> None:
            consume(data, start)
            taken.append(connection.work)

        connection.consume = counting
        writer.write(b"\r\n\r\n" * 10_000 + REQUEST)
        assert (await reader.readuntil(b"fine")).startswith(b"HTTP/1.1 200")
        assert len(taken) > 100
        assert max(taken) <= 2 * MAX_TURN_WORK

    run(test)
