"""How a service ends: what is under way is answered, what is new goes elsewhere, and nobody is waited for for ever."""

from __future__ import annotations

import asyncio

from headgate.service.rpc import frames
from headgate.service.rpc.frames import frame
from headgate.service.rpc.incoming import LAST_CALL
from unit.service.rpc.house import house, run, until
from unit.service.rpc.raw_client import Frame, Raw, message

LONG = 1000.0
"""Seconds that nobody waits in these tests."""
HEARD = frame(frames.PING, frames.ACK, 0, LAST_CALL)


async def last_call(raw: Raw) -> Frame:
    """The peer is told to go, and asked whether it has heard."""
    farewell = await raw.next(frames.GOAWAY)
    assert (frames.number(farewell.payload), farewell.code) == (2**31 - 1, frames.NO_ERROR)
    ping = await raw.next(frames.PING)
    assert (ping.flags, ping.payload) == (0, LAST_CALL)
    return farewell


def test_who_does_nothing_goes_as_soon_as_it_has_heard() -> None:
    async def test() -> None:
        async with house() as listener:
            raws = [await Raw.open(listener.port) for _ in range(3)]
            for raw in raws:
                await raw.pong()
            closing = asyncio.create_task(listener.close(LONG))
            for raw in raws:
                await last_call(raw)
                raw.send(HEARD)
                assert await raw.end() == Frame(frames.GOAWAY, 0, 0, bytes(8) + b"the service ends")
            await closing
            await listener.close(LONG)  # which has nothing left to do

    run(test)


def test_what_is_under_way_is_answered_and_what_is_new_refused() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            before = raw.call(b"/t.T/Waits", b"before")
            await until(lambda: listener.did.begun == 1)
            closing = asyncio.create_task(listener.close(LONG))
            await last_call(raw)
            crossing = raw.call(b"/t.T/AtOnce", b"crossing")  # was sent before its sender could know
            assert (await raw.answer(crossing)).data == message(b"crossing")
            raw.send(HEARD)
            farewell = await raw.next(frames.GOAWAY)
            assert frames.number(farewell.payload) == crossing
            assert (await raw.answer(raw.call(b"/t.T/AtOnce", b"new"))).code == frames.REFUSED_STREAM
            assert not closing.done()
            listener.did.go_on.set()
            assert (await raw.answer(before))[:2] == (0, message(b"before"))
            await raw.end()
            await closing

    run(test)


def test_a_call_that_is_taken_back_at_the_end_holds_up_nobody() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            number = raw.call(b"/t.T/Waits", b"")
            await until(lambda: listener.did.begun == 1)
            closing = asyncio.create_task(listener.close(LONG))
            await last_call(raw)
            raw.send(HEARD, frames.reset(number, frames.CANCEL))
            await raw.end()
            await closing
            await until(lambda: listener.did.cancelled == 1)

    run(test)


def test_who_hears_nothing_is_cut_off_when_patience_is_over() -> None:
    async def test() -> None:
        async with house() as listener:
            deaf, silent = await Raw.open(listener.port), await Raw.open(listener.port, b"")
            deaf.call(b"/t.T/Waits", b"")
            await until(lambda: listener.did.begun == 1 and len(listener.connections) == 2)
            await listener.close(0.05)
            await until(lambda: listener.did.cancelled == 1)
            await deaf.end()
            assert await silent.end() is not None or silent.came == []

    run(test)


def test_a_close_that_is_given_up_cuts_off_at_once() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            raw.call(b"/t.T/Waits", b"")
            await until(lambda: listener.did.begun == 1)
            closing = asyncio.create_task(listener.close(LONG))
            await last_call(raw)
            closing.cancel()
            await asyncio.wait([closing])
            await raw.end()
            await until(lambda: listener.did.cancelled == 1 and not listener.connections)

    run(test)


def test_nobody_new_is_let_in_while_it_ends() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            await raw.pong()
            closing = asyncio.create_task(listener.close(LONG))
            await last_call(raw)
            try:
                late = await Raw.open(listener.port)
            except ConnectionError:
                pass
            else:
                assert await late.frame() is None  # the socket is the test's, and nobody accepts from it
            raw.send(HEARD)
            await closing

    run(test)
