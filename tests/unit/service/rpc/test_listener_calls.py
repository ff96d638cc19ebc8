"""Calls as they come and go: answered, refused, ended early on either side; nothing of them is left."""

from __future__ import annotations

import asyncio

import pytest

from headgate.service.rpc import frames
from headgate.service.rpc.call import Status
from headgate.service.rpc.frames import frame
from headgate.service.rpc.incoming import MOST_STREAMS
from headgate.service.rpc.listener import MOST_PATIENCE, MOST_SILENCE
from headgate.service.rpc.stream import MOST_MESSAGE_BYTES
from unit.service.rpc.house import house, run, until
from unit.service.rpc.raw_client import HELLO, Raw, message

OK, END_STREAM = 0, frames.END_STREAM


@pytest.mark.parametrize("path", [b"/t.T/AtOnce", b"/t.T/InTime", b"/t.T/Stream"])
def test_several_calls_in_one_write_each_get_their_own_answer(path: bytes) -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            asked = {raw.call(path, b"%d" % n): b"%d" % n for n in range(50)}
            for number, data in asked.items():
                assert (await raw.answer(number))[:2] == (OK, message(data))

    run(test)


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 65_530, 65_531, MOST_MESSAGE_BYTES])
def test_messages_of_every_size_come_back(size: int) -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, HELLO + frames.window_update(0, 10**7))
            raw.send(frames.settings({frames.INITIAL_WINDOW: 10**7}))
            for path in (b"/t.T/AtOnce", b"/t.T/InTime", b"/t.T/Stream"):
                assert (await raw.answer(raw.call(path, b"x" * size)))[:2] == (OK, message(b"x" * size))

    run(test)


def test_what_is_asked_for_wrongly_is_refused_with_a_reason() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            answer = await raw.answer(raw.call(b"/no/Where", b""))
            assert (answer.status, answer.told) == (Status.UNIMPLEMENTED, "there is no method '/no/Where' here")
            answer = await raw.answer(raw.call(b"/t.T/Refuses", "ätsch 100%".encode()))
            assert (answer.status, answer.told) == (Status.ABORTED, "ätsch 100%")
            assert answer.said[b"retry-after"] == b"7   "
            for body, status in [
                (b"", Status.INVALID_ARGUMENT),
                (message(b"a") + message(b"b"), Status.INVALID_ARGUMENT),
                (message(b"abc")[:-1], Status.INVALID_ARGUMENT),
                (b"\x01" + message(b"a")[1:], Status.UNIMPLEMENTED),
                (b"\0" + (MOST_MESSAGE_BYTES + 1).to_bytes(4, "big"), Status.RESOURCE_EXHAUSTED),
                (b"\0\xff\xff\xff\xff" + b"x" * 9000, Status.RESOURCE_EXHAUSTED),
            ]:
                number, head = raw.head(b"/t.T/AtOnce")
                raw.send(head, frame(frames.DATA, END_STREAM, number, body))
                assert (await raw.answer(number)).status == status
            resets = [(came.stream, came.code) for came in raw.came if came.kind == frames.RST_STREAM]
            assert resets == [(1, frames.NO_ERROR)]  # which was refused before its message came
            assert listener.every[0].dropped == {}

    run(test)


def test_headers_alone_can_be_a_whole_call() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            for path, status in [(b"/t.T/AtOnce", Status.INVALID_ARGUMENT), (b"/t.T/Stream", OK), (b"/t.T/First", OK)]:
                number, head = raw.head(path, flags=frames.END_HEADERS | END_STREAM)
                raw.send(head)
                assert (await raw.answer(number))[:2] == (status, b"")

    run(test)


def test_what_is_no_call_of_grpc_is_told_so_in_words_of_http() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            browser = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")]
            raw.send(frame(frames.HEADERS, frames.END_HEADERS | END_STREAM, 1, raw.encoder.encode(browser)))
            assert (await raw.answer(1)).status == -405
            poster = [(b":method", b"POST"), *browser[1:], (b"content-type", b"text/plain")]
            raw.send(frame(frames.HEADERS, frames.END_HEADERS, 3, raw.encoder.encode(poster)))
            assert (await raw.answer(3)).status == -415
            assert (await raw.next(frames.RST_STREAM)).code == frames.NO_ERROR
            raw.send(frame(frames.DATA, END_STREAM, 3, b"who reads this?"))
            assert await raw.pong() == []
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
            writer.close()

    run(test)


def test_who_calls_gets_at_the_metadata_and_says_some() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            more = [(b"key-bin", b"AP8"), (b"key-bin", b"AQ"), (b"latin", b"\xe4\xff"), (b"grpc-timeout", b"99999999H")]
            assert (await raw.answer(raw.call(b"/t.T/InTime", b"", more))).status == OK
            call = listener.did.calls[0]
            assert (call.path, call.peer) == (b"/t.T/InTime", "127.0.0.1")
            assert [field for field in call.metadata if field in more] == more
            assert call.deadline is not None
            answer = await raw.answer(raw.call(b"/t.T/Stream", b"a"))
            assert (answer.said[b"content-type"], answer.said[b"x-said"]) == (b"application/grpc", b"before")

    run(test)


def test_a_mistake_of_ours_is_told_the_log_and_not_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            answer = await raw.answer(raw.call(b"/t.T/Fails", b"secret"))
            assert (answer.status, "secret" in answer.told) == (Status.INTERNAL, False)
            assert (await raw.answer(raw.call(b"/t.T/AtOnce", b"on"))).status == OK
            assert listener.told.lines.pop() == "a gRPC call failed unforeseen"

    run(test)
    assert "ZeroDivisionError: secret" in caplog.text


@pytest.mark.parametrize("path", [b"/t.T/Waits", b"/t.T/Deaf"])
def test_deadlines_end_what_is_under_way(path: bytes) -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            answer = await raw.answer(raw.call(path, b"a", [(b"grpc-timeout", b"200m")]))
            assert answer.status == Status.DEADLINE_EXCEEDED
            await until(lambda: listener.did.cancelled == 1)

    run(test)


@pytest.mark.parametrize("path", [b"/t.T/AtOnce", b"/t.T/InTime", b"/t.T/Stream"])
def test_what_comes_after_its_deadline_is_not_done(path: bytes) -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            number = raw.call(path, b"a", [(b"grpc-timeout", b"0n")])
            assert (await raw.answer(number))[:2] == (Status.DEADLINE_EXCEEDED, b"")
            assert listener.did.calls == []

    run(test)


def test_calls_that_are_taken_back_are_given_up() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            whole = [raw.call(b"/t.T/Waits", b"a") for _ in range(10)]
            number, head = raw.head(b"/t.T/AtOnce")
            raw.send(head, frame(frames.DATA, 0, number, message(b"x" * 9000)[:8000]))
            await until(lambda: listener.did.begun == 10)
            raw.send(*[frames.reset(taken, frames.CANCEL) for taken in [*whole, number]])
            assert await raw.pong() == []
            await until(lambda: listener.did.cancelled == 10)
            assert listener.every[0].incoming._held.size == 0
            # and what still comes of them is a mistake that is no other call's
            raw.send(frame(frames.DATA, 0, number, b"x"))
            assert (await raw.answer(raw.call(b"/t.T/AtOnce", b"b")))[:2] == (OK, message(b"b"))

    run(test)


def test_an_answer_that_nobody_wants_any_longer_goes_nowhere() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            number = raw.call(b"/t.T/Stubborn", b"a")
            await until(lambda: listener.did.begun)
            raw.send(frames.reset(number, frames.CANCEL))
            await until(lambda: listener.did.cancelled)
            assert await raw.pong() == []

    run(test)


def test_a_call_that_is_answered_before_it_has_come_whole() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            number, head = raw.head(b"/t.T/First")
            raw.send(head, frame(frames.DATA, 0, number, message(b"a") + message(b"b")))
            assert (await raw.answer(number))[:2] == (OK, message(b"a"))
            assert (await raw.next(frames.RST_STREAM)).code == frames.NO_ERROR
            trailers = frame(
                frames.HEADERS, frames.END_HEADERS | END_STREAM, number, raw.encoder.encode([(b"a", b"b")])
            )
            raw.send(frame(frames.DATA, 0, number, b"x" * 1000), trailers)
            assert await raw.pong() == []

    run(test)


def test_what_was_sent_goes_before_how_a_call_ends() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, frames.PREFACE + frames.settings({frames.INITIAL_WINDOW: 3}))
            number = raw.call(b"/t.T/Late", b"heard")
            await raw.next(frames.DATA)
            raw.send(frames.window_update(number, 100))
            answer = await raw.answer(number)
            assert (answer.status, answer.data, answer.told) == (Status.ABORTED, message(b"heard"), "after all")

    run(test)


def test_trailers_end_a_call() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            for fields, expected in [([(b"x", b"y")], OK), ([(b":path", b"/")], None)]:
                number, head = raw.head(b"/t.T/AtOnce")
                flags = frames.END_HEADERS | END_STREAM
                trailers = frame(frames.HEADERS, flags, number, raw.encoder.encode(fields))
                raw.send(head, frame(frames.DATA, 0, number, message(b"a")), trailers)
                assert (await raw.answer(number)).status == expected
            number, head = raw.head(b"/t.T/Stream")
            raw.send(head, frame(frames.DATA, 0, number, message(b"a")))
            await raw.next(frames.DATA)  # and now the next message is waited for
            raw.send(frame(frames.HEADERS, flags, number, raw.encoder.encode([(b"x", b"y")])))
            assert (await raw.answer(number)).status == OK

    run(test)


def test_what_was_announced_must_come() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            for length, code in [(b"6", None), (b"7", 1), (b"5", 1), (b"x", 1), (b"-6", 1)]:
                number = raw.call(b"/t.T/AtOnce", b"a", [(b"content-length", length)])
                assert (await raw.answer(number)).code == code

    run(test)


def test_a_thousand_streams_and_no_more() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            asked = [raw.call(b"/t.T/Waits", b"%d" % n) for n in range(MOST_STREAMS + 10)]
            for number in asked[MOST_STREAMS:]:
                assert (await raw.answer(number)).code == frames.REFUSED_STREAM
            listener.did.go_on.set()
            for n, number in enumerate(asked[:MOST_STREAMS]):
                assert (await raw.answer(number)).data == message(b"%d" % n) if n % 97 == 0 else True
            await until(lambda: not listener.every[0].streams)

    run(test)


def test_a_connection_that_is_cut_off_in_the_middle_of_everything_leaves_nothing() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, frames.PREFACE + frames.settings({frames.INITIAL_WINDOW: 10}))
            raw.call(b"/t.T/Waits", b"a")
            raw.call(b"/t.T/Deaf", b"a", [(b"grpc-timeout", b"1H")])
            raw.call(b"/t.T/Many", b"a" * 100)
            raw.call(b"/t.T/Large", b"90000")
            number, head = raw.head(b"/t.T/AtOnce")
            raw.send(head, frame(frames.DATA, 0, number, message(b"x" * 9000)[:8000]), raw.head(b"/t.T/AtOnce")[1][:-3])
            await until(lambda: len(listener.every[0].streams) == 5 and listener.did.begun >= 3)
            raw.cut()
            await until(lambda: not listener.connections)
            await until(lambda: listener.did.cancelled == 3)

    run(test)


def test_peers_that_do_not_go_on_are_let_go() -> None:
    async def test() -> None:
        async with house() as listener:
            silent = await Raw.open(listener.port, b"")
            halfway = await Raw.open(listener.port, HELLO[:-5])
            slow = await Raw.open(listener.port, frames.PREFACE + frames.settings({frames.INITIAL_WINDOW: 10}))
            half, head = slow.head(b"/t.T/AtOnce")
            slow.send(head, frame(frames.DATA, 0, half, b"\0\0"))
            large, streaming = slow.call(b"/t.T/Large", b"90000"), slow.call(b"/t.T/Deaf")
            await until(lambda: len(listener.every) == 3 and listener.did.begun == 1)
            now = listener.loop.time()
            listener.look(now + MOST_SILENCE - 1)
            assert len(listener.connections) == 3
            listener.look(now + MOST_SILENCE + 1)
            assert (await silent.end(), await halfway.end()) == (None, None)
            listener.look(now + MOST_PATIENCE + 1)
            assert (await slow.answer(half)).code == (await slow.answer(large)).code == frames.CANCEL
            listener.did.go_on.set()
            assert (await slow.answer(streaming)).status == OK

    run(test)
