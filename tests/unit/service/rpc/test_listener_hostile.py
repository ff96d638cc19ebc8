"""Peers that break the rules of HTTP/2: each is told which, others go on being answered, and nothing is left."""

from __future__ import annotations

import os
import random

import pytest

from headgate.service.rpc import frames
from headgate.service.rpc.connection import MOST_BOTHER
from headgate.service.rpc.frames import frame
from headgate.service.rpc.headers import block
from unit.service.rpc.house import House, house, run, until
from unit.service.rpc.raw_client import HELLO, Raw, message

CALM, SIZE, PROTOCOL, CLOSED = (
    frames.ENHANCE_YOUR_CALM,
    frames.FRAME_SIZE_ERROR,
    frames.PROTOCOL_ERROR,
    frames.STREAM_CLOSED,
)
END_HEADERS, END_STREAM = frames.END_HEADERS, frames.END_STREAM
FIELDS = block(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/t.T/Waits"),
        (b"content-type", b"application/grpc"),
    ]
)
BEGUN = frame(frames.HEADERS, END_HEADERS, 1, FIELDS)
WHOLE = BEGUN + frame(frames.DATA, END_STREAM, 1, message(b"a"))
PIECE = frame(frames.CONTINUATION, 0, 1, b"")


async def still_answers(listener: House) -> None:
    raw = await Raw.open(listener.port)
    assert (await raw.answer(raw.call(b"/t.T/AtOnce", b"still here"))).data == message(b"still here")
    raw.close()


MISTAKES = {
    "a frame that is too long": (frame(frames.PING, 0, 0, b"x" * 16_385), SIZE),
    "another frame first": (frames.PREFACE + frame(frames.PING, 0, 0, b"12345678"), PROTOCOL),
    "an acknowledgement first": (frames.PREFACE + frame(frames.SETTINGS, 1, 0, b""), PROTOCOL),
    "headers of no stream": (frame(frames.HEADERS, END_HEADERS, 0, FIELDS), PROTOCOL),
    "headers of an even stream": (frame(frames.HEADERS, END_HEADERS, 2, FIELDS), PROTOCOL),
    "headers that are all padding": (frame(frames.HEADERS, END_HEADERS | frames.PADDED, 1, b"\x05abcd"), PROTOCOL),
    "headers without their priority": (frame(frames.HEADERS, END_HEADERS | frames.PRIORITISED, 1, b"abcd"), SIZE),
    "headers of a stream that was left out": (
        frame(frames.HEADERS, END_HEADERS, 5, FIELDS) + frame(frames.HEADERS, END_HEADERS, 3, FIELDS),
        CLOSED,
    ),
    "something between pieces": (
        frame(frames.HEADERS, 0, 1, FIELDS) + frame(frames.PING, 0, 0, b"x" * 8),
        PROTOCOL,
    ),
    "something unknown between": (frame(frames.HEADERS, 0, 1, FIELDS) + frame(99, 0, 0, b"x"), PROTOCOL),
    "pieces of another stream": (
        frame(frames.HEADERS, 0, 1, FIELDS) + frame(frames.CONTINUATION, 4, 3, b""),
        PROTOCOL,
    ),
    "pieces of nothing": (PIECE, PROTOCOL),
    "too many pieces": (frame(frames.HEADERS, 0, 1, FIELDS) + PIECE * 65, CALM),
    "pieces that are too long": (
        frame(frames.HEADERS, 0, 1, b"") + frame(frames.CONTINUATION, 0, 1, b"x" * 9000) * 2,
        CALM,
    ),
    "headers that unfold": (frame(frames.HEADERS, END_HEADERS, 1, b"\x82" * 16_000), CALM),
    "headers that are noise": (frame(frames.HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"), 9),
    "data of no stream": (frame(frames.DATA, 0, 0, b""), PROTOCOL),
    "data of a stream to come": (frame(frames.DATA, 0, 1, b""), PROTOCOL),
    "data that are all padding": (BEGUN + frame(frames.DATA, frames.PADDED, 1, b"\x01"), PROTOCOL),
    "data without their padding": (BEGUN + frame(frames.DATA, frames.PADDED, 1, b""), PROTOCOL),
    "a reset of no stream": (frames.reset(0, 0), PROTOCOL),
    "a reset of a stream to come": (frames.reset(1, 0), PROTOCOL),
    "a reset that is too short": (BEGUN + frame(frames.RST_STREAM, 0, 1, b"abc"), SIZE),
    "settings of a stream": (frame(frames.SETTINGS, 0, 1, b""), PROTOCOL),
    "settings that are cut": (frame(frames.SETTINGS, 0, 0, b"abc"), SIZE),
    "an acknowledgement that sets": (frame(frames.SETTINGS, 1, 0, b"\0\x03\0\0\0\1"), SIZE),
    "a promise": (BEGUN + frame(frames.PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2"), PROTOCOL),
    "a ping of a stream": (frame(frames.PING, 0, 1, b"12345678"), PROTOCOL),
    "a ping that is too short": (frame(frames.PING, 0, 0, b"1234567"), SIZE),
    "a farewell of a stream": (frame(frames.GOAWAY, 0, 1, b"12345678"), PROTOCOL),
    "a window of a stream to come": (frames.window_update(1, 5), PROTOCOL),
    "a window by nothing": (frames.window_update(0, 0), PROTOCOL),
    "a window beyond all": (frames.window_update(0, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
    "a window that is cut": (frame(frames.WINDOW_UPDATE, 0, 0, b"abc"), SIZE),
    "a window of a stream beyond all by settings": (
        BEGUN + frames.window_update(1, 2**31 - 70_000) + frames.settings({frames.INITIAL_WINDOW: 2**31 - 1}),
        frames.FLOW_CONTROL_ERROR,
    ),
    "a priority of no stream": (frame(frames.PRIORITY, 0, 0, b"12345"), PROTOCOL),
    "headers behind the end": (WHOLE + frames.reset(1, 8) + BEGUN, CLOSED),
    "settings again and again": (frames.settings({frames.INITIAL_WINDOW: 5}) * (MOST_BOTHER + 1), CALM),
    "calls that are taken back": (
        b"".join(
            [
                frame(frames.HEADERS, END_HEADERS, n, FIELDS) + frames.reset(n, 8)
                for n in range(1, 2 * MOST_BOTHER + 400, 2)
            ]
        ),
        CALM,
    ),
    "calls that we are made to take back": (
        b"".join(
            [
                frame(frames.HEADERS, END_HEADERS, n, FIELDS) + frames.window_update(n, 0)
                for n in range(1, 2 * MOST_BOTHER + 400, 2)
            ]
        ),
        CALM,
    ),
}


@pytest.mark.parametrize(
    "name", ["settings again and again", "calls that are taken back", "calls that we are made to take back"]
)
def test_goaway_says_that_frames_carry_no_calls(name: str) -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, HELLO + MISTAKES[name][0])
            farewell = await raw.end()
            assert farewell is not None
            assert farewell.payload[8:] == b"too many RST_STREAM frames, or other frames without calls"

    run(test)


@pytest.mark.parametrize(("sent", "code"), MISTAKES.values(), ids=MISTAKES.keys())
def test_who_breaks_the_rules_is_told_so_and_hung_up_on(sent: bytes, code: int) -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, sent if sent.startswith(frames.PREFACE) else HELLO + sent)
            farewell = await raw.end()
            assert farewell is not None
            assert (farewell.code, raw.came[-1].kind) == (code, frames.GOAWAY)
            assert farewell.payload[8:]
            await until(lambda: not listener.connections)
            await still_answers(listener)

    run(test)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(frames.HEADERS, END_HEADERS, 1, block([(b":method", b"POST")])), PROTOCOL),
        (BEGUN + frame(frames.HEADERS, END_HEADERS, 1, block([(b"a", b"b")])), PROTOCOL),
        (BEGUN + frames.window_update(1, 0), PROTOCOL),
        (BEGUN + frames.window_update(1, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
        (BEGUN + frame(frames.PRIORITY, 0, 1, b"1234"), SIZE),
        (WHOLE + frame(frames.DATA, 0, 1, b"more"), CLOSED),
        (WHOLE + frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, block([(b"a", b"b")])), CLOSED),
        (WHOLE + frames.reset(1, 8) + frame(frames.DATA, 0, 1, b"more"), CLOSED),
    ],
)
def test_mistakes_of_one_stream_end_that_stream(sent: bytes, code: int) -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, HELLO + sent)
            assert (await raw.answer(1)).code == code
            raw._next = 3
            assert (await raw.answer(raw.call(b"/t.T/AtOnce", b"a"))).data == message(b"a")
            await until(lambda: listener.did.begun == listener.did.cancelled)

    run(test)


def test_what_may_be_passed_over_is() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            raw.send(frame(99, 255, 12, b"unknown"), frame(frames.PRIORITY, 0, 77, b"12345"))
            raw.send(frames.settings({99: 5, 1: 0, 2: 0}), frame(frames.PING, frames.ACK, 0, b"headgate"))
            raw.send(frame(frames.GOAWAY, 0, 0, b"\0" * 8 + b"bye"))
            number, head = raw.head(b"/t.T/AtOnce", flags=END_HEADERS | frames.PADDED | frames.PRIORITISED)
            raw.send(head[:2], bytes([head[2] + 8]), head[3:9], b"\x02" + b"\0\0\0\1\7" + head[9:] + b"\0\0")
            raw.send(frame(frames.DATA, END_STREAM, number, message(b"a")))
            assert (await raw.answer(number)).data == message(b"a")
            assert not listener.every[0].left

    run(test)


def test_headers_in_pieces_are_put_together() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            number, head = raw.head(b"/t.T/AtOnce")
            pieces = [frame(frames.CONTINUATION, 0, number, head[at : at + 1]) for at in range(10, len(head))]
            assert len(pieces) < 60
            raw.send(frame(frames.HEADERS, 0, number, head[9:10]), *pieces)
            raw.send(frame(frames.CONTINUATION, END_HEADERS, number, b""))
            raw.send(frame(frames.DATA, END_STREAM, number, message(b"a")))
            assert (await raw.answer(number)).data == message(b"a")

    run(test)


def test_calls_that_end_make_up_for_those_that_are_taken_back() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            for _ in range(MOST_BOTHER + 100):
                number, head = raw.head(b"/t.T/Waits")
                raw.send(head, frames.reset(number, frames.CANCEL))
                last = raw.call(b"/t.T/AtOnce", b"a")
            assert (await raw.answer(last)).status == 0

    run(test)


def test_who_has_waited_for_an_answer_may_give_up() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            for _ in range(2):
                asked = [raw.call(b"/t.T/Waits", b"a") for _ in range(MOST_BOTHER - 100)]
                await raw.pong()
                for stream in listener.every[0].streams.values():
                    stream.since -= 1.0
                raw.send(*[frames.reset(number, frames.CANCEL) for number in asked])
            assert (await raw.answer(raw.call(b"/t.T/AtOnce", b"a"))).status == 0

    run(test)


def test_noise_never_gets_further_than_its_connection() -> None:
    async def test() -> None:
        noise = random.Random(7)
        good = [HELLO, BEGUN, WHOLE[len(BEGUN) :], frames.window_update(1, 9), frames.reset(1, 8), HELLO[24:], PIECE]
        async with house() as listener:
            for turn in range(150):
                data = bytearray(b"".join([HELLO, *noise.choices(good, k=6)]) if turn % 3 else HELLO + os.urandom(200))
                for _ in range(noise.randrange(4)):
                    data[noise.randrange(24, len(data))] = noise.randrange(256)
                raw = await Raw.open(listener.port, bytes(data[: noise.randrange(1, len(data))]))
                if turn % 2:
                    raw.cut()
                else:
                    raw.close()
            await until(lambda: not listener.connections)
            await still_answers(listener)

    run(test)
