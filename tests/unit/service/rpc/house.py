"""A listener on a real socket, with methods that are good for tests; and a look at what is left when all have gone."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from socket import create_server
from typing import Any

import uvloop

from headgate.service.rpc.call import Method, RpcCall, RpcError, Send, Status
from headgate.service.rpc.connection import Connection
from headgate.service.rpc.listener import Listener
from headgate.service.rpc.memory import FREE_BYTES

__all__ = ["House", "Methods", "house", "left_behind", "run", "until"]

PATIENCE = 20.0
"""Seconds for what must happen. Nothing waits so long unless it has failed."""


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on the loop that workers run on."""

    async def bounded() -> None:
        await asyncio.wait_for(test(), 2 * PATIENCE)

    uvloop.run(bounded())


async def until(true: Callable[[], object]) -> None:
    """Wait for what another part of the loop does."""
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.001)


class Methods:
    """What can be called, and what has come of it."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.calls: list[RpcCall] = []
        self.go_on = asyncio.Event()

    def by_path(self) -> dict[bytes, Method]:
        return {
            b"/t.T/AtOnce": Method(self.in_time, self.at_once),
            b"/t.T/InTime": Method(self.in_time),
            b"/t.T/Large": Method(self.in_time, self.large),
            b"/t.T/Waits": Method(self.waits),
            b"/t.T/Stubborn": Method(self.stubborn),
            b"/t.T/Refuses": Method(self.in_time, self.refuses),
            b"/t.T/Fails": Method(self.in_time, self.fails),
            b"/t.T/Stream": Method(streaming=self.stream),
            b"/t.T/First": Method(streaming=self.first),
            b"/t.T/Many": Method(streaming=self.many),
            b"/t.T/Deaf": Method(streaming=self.deaf),
            b"/t.T/Late": Method(streaming=self.late),
        }

    def at_once(self, call: RpcCall, message: bytes) -> bytes:
        self.calls.append(call)
        return message

    async def in_time(self, call: RpcCall, message: bytes) -> bytes:
        self.calls.append(call)
        await asyncio.sleep(0)
        return message

    def large(self, call: RpcCall, message: bytes) -> bytes:
        """As many bytes as it is told, and not all the same."""
        size = int(message)
        return (b"%d," % size * (size // 2 + 1))[:size]

    async def waits(self, call: RpcCall, message: bytes) -> bytes:
        await self._watched(self.go_on.wait())
        return message

    async def stubborn(self, call: RpcCall, message: bytes) -> bytes:
        """Answers, whether or not anybody still wants it."""
        with suppress(asyncio.CancelledError):
            await self._watched(self.go_on.wait())
        return message

    async def _watched(self, work: Awaitable[object]) -> None:
        self.begun += 1
        try:
            await work
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def refuses(self, call: RpcCall, message: bytes) -> bytes:
        raise RpcError(Status.ABORTED, message.decode(), ((b"retry-after", b"7\r\n\0"),))

    def fails(self, call: RpcCall, message: bytes) -> bytes:
        raise ZeroDivisionError(message.decode())

    async def stream(self, call: RpcCall, messages: AsyncIterator[bytes], send: Send) -> None:
        call.said = ((b"x-said", b"before"),)
        async for message in messages:
            await send(message)

    async def first(self, call: RpcCall, messages: AsyncIterator[bytes], send: Send) -> None:
        """Hears one message of however many."""
        async for message in messages:
            await send(message)
            return

    async def many(self, call: RpcCall, messages: AsyncIterator[bytes], send: Send) -> None:
        """Says a message without end."""
        async for message in messages:
            while True:
                await self._watched(send(message))

    async def deaf(self, call: RpcCall, messages: AsyncIterator[bytes], send: Send) -> None:
        """Hears nothing before it is told to."""
        await self._watched(self.go_on.wait())
        async for message in messages:
            await send(b"%d" % len(message))

    async def late(self, call: RpcCall, messages: AsyncIterator[bytes], send: Send) -> None:
        """Says what it has heard, and then that it does not like it."""
        async for message in messages:
            await send(message)
        raise RpcError(Status.ABORTED, "after all")


class House(Listener):
    """A listener that remembers its connections."""

    def __init__(self, methods: Methods, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(methods.by_path(), tls)
        self.did = methods
        self.port = 0
        self.told = Told()
        self.every: list[Connection] = []

    def _connection(self) -> Connection:
        self.every.append(super()._connection())
        return self.every[-1]


@asynccontextmanager
async def house(tls: ssl.SSLContext | None = None) -> AsyncIterator[House]:
    """Listen; see that nothing is left behind, and that the log was told nothing that anybody could make it tell."""
    before = asyncio.all_tasks()
    listener = House(Methods(), tls)
    told = listener.told
    logging.getLogger().addHandler(told)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.lines.append(repr(context)))
    with create_server(("127.0.0.1", 0)) as listening:
        listener.port = listening.getsockname()[1]
        try:
            await listener.start(listening)
            yield listener
        finally:
            await listener.close(0)
            logging.getLogger().removeHandler(told)
    await until(lambda: not listener.connections)
    await until(lambda: asyncio.all_tasks() <= before)
    for connection in listener.every:
        assert not any(left_behind(connection).values()), left_behind(connection)
    assert told.lines == [], told.lines


def left_behind(connection: Connection) -> dict[str, object]:
    """What a connection still holds."""
    return {
        "streams": list(connection.streams),
        "held": connection.held.size,
        "reserved": connection.held.reserved - FREE_BYTES,
        "waiting": list(connection.replies._waiting),
        "out": list(connection.replies.out),
    }


class Told(logging.Handler):
    """What would stand in the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
