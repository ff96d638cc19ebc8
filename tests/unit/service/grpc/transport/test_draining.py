"""Draining: open calls are served, new ones are refused, and nothing waits for ever."""

from __future__ import annotations

import asyncio

from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.frames import frame
from crestgate.service.grpc.transport.receiver import DRAIN_PING
from unit.service.grpc.transport.listener_harness import open_listener, run, until
from unit.service.grpc.transport.raw_client import Frame, RawClient, message

LONG = 1000.0
"""Seconds, never reached."""
DRAIN_ACK = frame(frames.PING, frames.ACK, 0, DRAIN_PING)


async def draining(raw: RawClient) -> Frame:
    """Wait for the first GOAWAY and the ping behind it."""
    goaway = await raw.next(frames.GOAWAY)
    assert (frames.read_uint32(goaway.payload), goaway.code) == (2**31 - 1, frames.NO_ERROR)
    ping = await raw.next(frames.PING)
    assert (ping.flags, ping.payload) == (0, DRAIN_PING)
    return goaway


def test_idle_connections_close_after_the_drain_ping() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raws = [await RawClient.open(listener.port) for _ in range(3)]
            for raw in raws:
                await raw.sync()
            closing = asyncio.create_task(listener.close(LONG))
            for raw in raws:
                await draining(raw)
                raw.send(DRAIN_ACK)
                assert await raw.end() == Frame(frames.GOAWAY, 0, 0, bytes(8) + b"the service is shutting down")
            await closing
            await listener.close(LONG)  # nothing is left to drain

    run(test)


def test_draining_serves_open_calls_and_refuses_new_ones() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            before = raw.call(b"/t.T/Waits", b"before")
            await until(lambda: listener.handlers.started == 1)
            closing = asyncio.create_task(listener.close(LONG))
            await draining(raw)
            crossing = raw.call(b"/t.T/Sync", b"crossing")  # sent before the client has received the GOAWAY
            assert (await raw.response(crossing)).data == message(b"crossing")
            raw.send(DRAIN_ACK)
            goaway = await raw.next(frames.GOAWAY)
            assert frames.read_uint32(goaway.payload) == crossing
            assert (await raw.response(raw.call(b"/t.T/Sync", b"new"))).code == frames.REFUSED_STREAM
            assert not closing.done()
            listener.handlers.proceed.set()
            assert (await raw.response(before))[:2] == (0, message(b"before"))
            await raw.end()
            await closing

    run(test)


def test_reset_call_ends_draining() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            number = raw.call(b"/t.T/Waits", b"")
            await until(lambda: listener.handlers.started == 1)
            closing = asyncio.create_task(listener.close(LONG))
            await draining(raw)
            raw.send(DRAIN_ACK, frames.rst_stream(number, frames.CANCEL))
            await raw.end()
            await closing
            await until(lambda: listener.handlers.cancelled == 1)

    run(test)


def test_close_timeout_aborts_unresponsive_peers() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            unresponsive, silent = await RawClient.open(listener.port), await RawClient.open(listener.port, b"")
            unresponsive.call(b"/t.T/Waits", b"")
            await until(lambda: listener.handlers.started == 1 and len(listener.connections) == 2)
            await listener.close(0.05)
            await until(lambda: listener.handlers.cancelled == 1)
            await unresponsive.end()
            assert await silent.end() is not None or silent.received == []

    run(test)


def test_cancelled_close_aborts_immediately() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            raw.call(b"/t.T/Waits", b"")
            await until(lambda: listener.handlers.started == 1)
            closing = asyncio.create_task(listener.close(LONG))
            await draining(raw)
            closing.cancel()
            await asyncio.wait([closing])
            await raw.end()
            await until(lambda: listener.handlers.cancelled == 1 and not listener.connections)

    run(test)


def test_draining_accepts_no_connections() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            await raw.sync()
            closing = asyncio.create_task(listener.close(LONG))
            await draining(raw)
            try:
                late = await RawClient.open(listener.port)
            except ConnectionError:
                pass
            else:
                assert await late.frame() is None  # the test still owns the socket, but nothing accepts from it
            raw.send(DRAIN_ACK)
            await closing

    run(test)
