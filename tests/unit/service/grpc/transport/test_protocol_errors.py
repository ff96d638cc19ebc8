"""Protocol violations: the right error code, other connections unaffected, everything released."""

from __future__ import annotations

import os
import random

import pytest

from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.connection import MAX_GLITCHES
from crestgate.service.grpc.transport.frames import frame
from crestgate.service.grpc.transport.headers import encode_headers
from unit.service.grpc.transport.listener_harness import ListenerHarness, open_listener, run, until
from unit.service.grpc.transport.raw_client import CLIENT_PREFACE, RawClient, message

CALM, SIZE, PROTOCOL, CLOSED = (
    frames.ENHANCE_YOUR_CALM,
    frames.FRAME_SIZE_ERROR,
    frames.PROTOCOL_ERROR,
    frames.STREAM_CLOSED,
)
END_HEADERS, END_STREAM = frames.END_HEADERS, frames.END_STREAM
FIELDS = encode_headers(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/t.T/Waits"),
        (b"content-type", b"application/grpc"),
    ]
)
STARTED = frame(frames.HEADERS, END_HEADERS, 1, FIELDS)
WHOLE = STARTED + frame(frames.DATA, END_STREAM, 1, message(b"a"))
PIECE = frame(frames.CONTINUATION, 0, 1, b"")


async def still_answers(listener: ListenerHarness) -> None:
    raw = await RawClient.open(listener.port)
    assert (await raw.response(raw.call(b"/t.T/Sync", b"still here"))).data == message(b"still here")
    raw.close()


ERRORS = {
    "a frame that is too long": (frame(frames.PING, 0, 0, b"x" * 16_385), SIZE),
    "another frame first": (frames.PREFACE + frame(frames.PING, 0, 0, b"12345678"), PROTOCOL),
    "an acknowledgement first": (frames.PREFACE + frame(frames.SETTINGS, 1, 0, b""), PROTOCOL),
    "headers of no stream": (frame(frames.HEADERS, END_HEADERS, 0, FIELDS), PROTOCOL),
    "headers of an even stream": (frame(frames.HEADERS, END_HEADERS, 2, FIELDS), PROTOCOL),
    "headers that are all padding": (frame(frames.HEADERS, END_HEADERS | frames.PADDED, 1, b"\x05abcd"), PROTOCOL),
    "headers without their priority": (frame(frames.HEADERS, END_HEADERS | frames.PRIORITY_FLAG, 1, b"abcd"), SIZE),
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
    "data that are all padding": (STARTED + frame(frames.DATA, frames.PADDED, 1, b"\x01"), PROTOCOL),
    "data without their padding": (STARTED + frame(frames.DATA, frames.PADDED, 1, b""), PROTOCOL),
    "a reset of no stream": (frames.rst_stream(0, 0), PROTOCOL),
    "a reset of a stream to come": (frames.rst_stream(1, 0), PROTOCOL),
    "a reset that is too short": (STARTED + frame(frames.RST_STREAM, 0, 1, b"abc"), SIZE),
    "settings of a stream": (frame(frames.SETTINGS, 0, 1, b""), PROTOCOL),
    "settings that are cut": (frame(frames.SETTINGS, 0, 0, b"abc"), SIZE),
    "an acknowledgement that sets": (frame(frames.SETTINGS, 1, 0, b"\0\x03\0\0\0\1"), SIZE),
    "a promise": (STARTED + frame(frames.PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2"), PROTOCOL),
    "a ping of a stream": (frame(frames.PING, 0, 1, b"12345678"), PROTOCOL),
    "a ping that is too short": (frame(frames.PING, 0, 0, b"1234567"), SIZE),
    "a goaway of a stream": (frame(frames.GOAWAY, 0, 1, b"12345678"), PROTOCOL),
    "a window of a stream to come": (frames.window_update(1, 5), PROTOCOL),
    "a window by nothing": (frames.window_update(0, 0), PROTOCOL),
    "a window beyond all": (frames.window_update(0, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
    "a window that is cut": (frame(frames.WINDOW_UPDATE, 0, 0, b"abc"), SIZE),
    "a window of a stream beyond all by settings": (
        STARTED + frames.window_update(1, 2**31 - 70_000) + frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31 - 1}),
        frames.FLOW_CONTROL_ERROR,
    ),
    "a priority of no stream": (frame(frames.PRIORITY, 0, 0, b"12345"), PROTOCOL),
    "headers behind the end": (WHOLE + frames.rst_stream(1, 8) + STARTED, CLOSED),
    "settings again and again": (frames.settings({frames.INITIAL_WINDOW_SIZE: 5}) * (MAX_GLITCHES + 1), CALM),
    "calls that are taken back": (
        b"".join(
            [
                frame(frames.HEADERS, END_HEADERS, n, FIELDS) + frames.rst_stream(n, 8)
                for n in range(1, 2 * MAX_GLITCHES + 400, 2)
            ]
        ),
        CALM,
    ),
    "calls that we are made to take back": (
        b"".join(
            [
                frame(frames.HEADERS, END_HEADERS, n, FIELDS) + frames.window_update(n, 0)
                for n in range(1, 2 * MAX_GLITCHES + 400, 2)
            ]
        ),
        CALM,
    ),
}


@pytest.mark.parametrize(
    "name", ["settings again and again", "calls that are taken back", "calls that we are made to take back"]
)
def test_goaway_names_the_glitches(name: str) -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, CLIENT_PREFACE + ERRORS[name][0])
            goaway = await raw.end()
            assert goaway is not None
            assert goaway.payload[8:] == b"too many RST_STREAM frames, or other glitches"

    run(test)


@pytest.mark.parametrize(("sent", "code"), ERRORS.values(), ids=ERRORS.keys())
def test_connection_errors_close_with_goaway(sent: bytes, code: int) -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(
                listener.port, sent if sent.startswith(frames.PREFACE) else CLIENT_PREFACE + sent
            )
            goaway = await raw.end()
            assert goaway is not None
            assert (goaway.code, raw.received[-1].kind) == (code, frames.GOAWAY)
            assert goaway.payload[8:]
            await until(lambda: not listener.connections)
            await still_answers(listener)

    run(test)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(frames.HEADERS, END_HEADERS, 1, encode_headers([(b":method", b"POST")])), PROTOCOL),
        (STARTED + frame(frames.HEADERS, END_HEADERS, 1, encode_headers([(b"a", b"b")])), PROTOCOL),
        (STARTED + frames.window_update(1, 0), PROTOCOL),
        (STARTED + frames.window_update(1, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
        (STARTED + frame(frames.PRIORITY, 0, 1, b"1234"), SIZE),
        (WHOLE + frame(frames.DATA, 0, 1, b"more"), CLOSED),
        (WHOLE + frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, encode_headers([(b"a", b"b")])), CLOSED),
        (WHOLE + frames.rst_stream(1, 8) + frame(frames.DATA, 0, 1, b"more"), CLOSED),
    ],
)
def test_stream_errors_reset_only_that_stream(sent: bytes, code: int) -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, CLIENT_PREFACE + sent)
            assert (await raw.response(1)).code == code
            raw._next = 3
            assert (await raw.response(raw.call(b"/t.T/Sync", b"a"))).data == message(b"a")
            await until(lambda: listener.handlers.started == listener.handlers.cancelled)

    run(test)


def test_ignorable_frames_are_ignored() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            raw.send(frame(99, 255, 12, b"unknown"), frame(frames.PRIORITY, 0, 77, b"12345"))
            raw.send(frames.settings({99: 5, 1: 0, 2: 0}), frame(frames.PING, frames.ACK, 0, b"last-ids"))
            raw.send(frame(frames.GOAWAY, 0, 0, b"\0" * 8 + b"bye"))
            number, head = raw.headers(b"/t.T/Sync", flags=END_HEADERS | frames.PADDED | frames.PRIORITY_FLAG)
            raw.send(head[:2], bytes([head[2] + 8]), head[3:9], b"\x02" + b"\0\0\0\1\7" + head[9:] + b"\0\0")
            raw.send(frame(frames.DATA, END_STREAM, number, message(b"a")))
            assert (await raw.response(number)).data == message(b"a")
            assert not listener.all_connections[0].goaway_sent

    run(test)


def test_continuation_frames_are_assembled() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            number, head = raw.headers(b"/t.T/Sync")
            pieces = [frame(frames.CONTINUATION, 0, number, head[at : at + 1]) for at in range(10, len(head))]
            assert len(pieces) < 60
            raw.send(frame(frames.HEADERS, 0, number, head[9:10]), *pieces)
            raw.send(frame(frames.CONTINUATION, END_HEADERS, number, b""))
            raw.send(frame(frames.DATA, END_STREAM, number, message(b"a")))
            assert (await raw.response(number)).data == message(b"a")

    run(test)


def test_completed_calls_offset_reset_ones() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            for _ in range(MAX_GLITCHES + 100):
                number, head = raw.headers(b"/t.T/Waits")
                raw.send(head, frames.rst_stream(number, frames.CANCEL))
                last = raw.call(b"/t.T/Sync", b"a")
            assert (await raw.response(last)).status == 0

    run(test)


def test_late_resets_are_no_glitches() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            for _ in range(2):
                streams = [raw.call(b"/t.T/Waits", b"a") for _ in range(MAX_GLITCHES - 100)]
                await raw.sync()
                for stream in listener.all_connections[0].streams.values():
                    stream.started_at -= 1.0
                raw.send(*[frames.rst_stream(number, frames.CANCEL) for number in streams])
            assert (await raw.response(raw.call(b"/t.T/Sync", b"a"))).status == 0

    run(test)


def test_random_bytes_affect_only_their_connection() -> None:
    async def test() -> None:
        noise = random.Random(7)
        good = [
            CLIENT_PREFACE,
            STARTED,
            WHOLE[len(STARTED) :],
            frames.window_update(1, 9),
            frames.rst_stream(1, 8),
            CLIENT_PREFACE[24:],
            PIECE,
        ]
        async with open_listener() as listener:
            for turn in range(150):
                data = bytearray(
                    b"".join([CLIENT_PREFACE, *noise.choices(good, k=6)])
                    if turn % 3
                    else CLIENT_PREFACE + os.urandom(200)
                )
                for _ in range(noise.randrange(4)):
                    data[noise.randrange(24, len(data))] = noise.randrange(256)
                raw = await RawClient.open(listener.port, bytes(data[: noise.randrange(1, len(data))]))
                if turn % 2:
                    raw.abort()
                else:
                    raw.close()
            await until(lambda: not listener.connections)
            await still_answers(listener)

    run(test)
