"""A listener on a real socket with test handlers, which checks at the end that every connection released everything."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from socket import create_server
from typing import Any

import uvloop

from crestgate.service.grpc.transport.call import Method, RpcCall, RpcError, RpcStatus, Send
from crestgate.service.grpc.transport.connection import Http2Connection
from crestgate.service.grpc.transport.listener import GrpcListener
from crestgate.service.grpc.transport.memory import FREE_BYTES

__all__ = ["Handlers", "ListenerHarness", "open_listener", "run", "unreleased", "until"]

TIMEOUT = 20.0
"""Seconds. A test that takes longer has failed."""


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on the event loop of workers."""

    async def bounded() -> None:
        await asyncio.wait_for(test(), 2 * TIMEOUT)

    uvloop.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    """Wait until another task makes the condition true."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.001)


class Handlers:
    """Handlers of test methods, which count their calls."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.calls: list[RpcCall] = []
        self.proceed = asyncio.Event()

    def by_path(self) -> dict[bytes, Method]:
        return {
            b"/t.T/Sync": Method(self.sync),
            b"/t.T/Async": Method(self.async_),
            b"/t.T/Large": Method(self.large),
            b"/t.T/Waits": Method(self.waits),
            b"/t.T/IgnoresCancellation": Method(self.ignores_cancellation),
            b"/t.T/Refuses": Method(self.refuses),
            b"/t.T/Fails": Method(self.fails),
            b"/t.T/Stream": Method(streaming=self.stream),
            b"/t.T/First": Method(streaming=self.first),
            b"/t.T/Many": Method(streaming=self.many),
            b"/t.T/Unread": Method(streaming=self.unread),
            b"/t.T/Late": Method(streaming=self.late),
        }

    def sync(self, call: RpcCall, message: bytes) -> bytes:
        self.calls.append(call)
        return message

    async def async_(self, call: RpcCall, message: bytes) -> bytes:
        self.calls.append(call)
        await asyncio.sleep(0)
        return message

    def large(self, call: RpcCall, message: bytes) -> bytes:
        """Returns as many bytes as the message requests, not all the same."""
        size = int(message)
        return (b"%d," % size * (size // 2 + 1))[:size]

    async def waits(self, call: RpcCall, message: bytes) -> bytes:
        await self._counted(self.proceed.wait())
        return message

    async def ignores_cancellation(self, call: RpcCall, message: bytes) -> bytes:
        """Returns a response although it is cancelled."""
        with suppress(asyncio.CancelledError):
            await self._counted(self.proceed.wait())
        return message

    async def _counted(self, work: Awaitable[object]) -> None:
        self.started += 1
        try:
            await work
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def refuses(self, call: RpcCall, message: bytes) -> bytes:
        raise RpcError(RpcStatus.ABORTED, message.decode(), ((b"retry-after", b"7\r\n\0"),))

    def fails(self, call: RpcCall, message: bytes) -> bytes:
        raise ZeroDivisionError(message.decode())

    async def stream(self, call: RpcCall, messages: AsyncIterator[bytes], send: Send) -> None:
        """Echoes all messages."""
        call.response_headers = ((b"x-handler", b"stream"),)
        async for message in messages:
            await send(message)

    async def first(self, call: RpcCall, messages: AsyncIterator[bytes], send: Send) -> None:
        """Echoes the first message only."""
        async for message in messages:
            await send(message)
            return

    async def many(self, call: RpcCall, messages: AsyncIterator[bytes], send: Send) -> None:
        """Sends a message again and again."""
        async for message in messages:
            while True:
                await self._counted(send(message))

    async def unread(self, call: RpcCall, messages: AsyncIterator[bytes], send: Send) -> None:
        """Reads nothing before `proceed` is set."""
        await self._counted(self.proceed.wait())
        async for message in messages:
            await send(b"%d" % len(message))

    async def late(self, call: RpcCall, messages: AsyncIterator[bytes], send: Send) -> None:
        """Echoes all messages, and then fails."""
        async for message in messages:
            await send(message)
        raise RpcError(RpcStatus.ABORTED, "after all")


class ListenerHarness(GrpcListener):
    """A listener that keeps all its connections."""

    def __init__(self, handlers: Handlers, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(handlers.by_path(), None if tls is None else lambda: tls)
        self.handlers = handlers
        self.port = 0
        self.log = LogCapture()
        self.all_connections: list[Http2Connection] = []

    def _create_connection(self) -> Http2Connection:
        self.all_connections.append(super()._create_connection())
        return self.all_connections[-1]


@asynccontextmanager
async def open_listener(tls: ssl.SSLContext | None = None) -> AsyncIterator[ListenerHarness]:
    """Listen; then check that everything is released, and that peers could not cause log lines."""
    before = asyncio.all_tasks()
    listener = ListenerHarness(Handlers(), tls)
    log = listener.log
    logging.getLogger().addHandler(log)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: log.lines.append(repr(context)))
    with create_server(("127.0.0.1", 0)) as listening:
        listener.port = listening.getsockname()[1]
        try:
            await listener.start(listening)
            yield listener
        finally:
            await listener.close(0)
            logging.getLogger().removeHandler(log)
    await until(lambda: not listener.connections)
    await until(lambda: asyncio.all_tasks() <= before)
    for connection in listener.all_connections:
        assert not any(unreleased(connection).values()), unreleased(connection)
    assert log.lines == [], log.lines


def unreleased(connection: Http2Connection) -> dict[str, object]:
    """What a connection still holds."""
    return {
        "streams": list(connection.streams),
        "held": connection.held.size,
        "reserved": connection.held.reserved - FREE_BYTES,
        "waiting": list(connection.sender._waiting),
        "out": list(connection.sender.out),
    }


class LogCapture(logging.Handler):
    """Messages of warnings and errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
