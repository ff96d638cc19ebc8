"""Calls: responses, errors, resets on either side, and that everything is released."""

from __future__ import annotations

import asyncio

import pytest

from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.call import RpcStatus
from crestgate.service.grpc.transport.frames import frame
from crestgate.service.grpc.transport.listener import PREFACE_TIMEOUT, STALL_TIMEOUT
from crestgate.service.grpc.transport.requests import MAX_STREAMS
from crestgate.service.grpc.transport.stream import MAX_MESSAGE_BYTES
from unit.service.grpc.transport.listener_harness import open_listener, run, until
from unit.service.grpc.transport.raw_client import CLIENT_PREFACE, RawClient, message

OK, END_STREAM = 0, frames.END_STREAM


@pytest.mark.parametrize("path", [b"/t.T/Sync", b"/t.T/Async", b"/t.T/Stream"])
def test_pipelined_calls_each_get_their_response(path: bytes) -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            sent = {raw.call(path, b"%d" % n): b"%d" % n for n in range(50)}
            for number, data in sent.items():
                assert (await raw.response(number))[:2] == (OK, message(data))

    run(test)


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 65_530, 65_531, MAX_MESSAGE_BYTES])
def test_messages_of_all_sizes_are_echoed(size: int) -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, CLIENT_PREFACE + frames.window_update(0, 10**7))
            raw.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 10**7}))
            for path in (b"/t.T/Sync", b"/t.T/Async", b"/t.T/Stream"):
                assert (await raw.response(raw.call(path, b"x" * size)))[:2] == (OK, message(b"x" * size))

    run(test)


def test_invalid_calls_fail_with_a_reason() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            response = await raw.response(raw.call(b"/no/Where", b""))
            assert (response.status, response.message) == (RpcStatus.UNIMPLEMENTED, "unknown method '/no/Where'")
            response = await raw.response(raw.call(b"/t.T/Refuses", "ätsch 100%".encode()))
            assert (response.status, response.message) == (RpcStatus.ABORTED, "ätsch 100%")
            assert response.headers[b"retry-after"] == b"7   "
            for body, status in [
                (b"", RpcStatus.INVALID_ARGUMENT),
                (message(b"a") + message(b"b"), RpcStatus.INVALID_ARGUMENT),
                (message(b"abc")[:-1], RpcStatus.INVALID_ARGUMENT),
                (b"\x01" + message(b"a")[1:], RpcStatus.UNIMPLEMENTED),
                (b"\0" + (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"), RpcStatus.RESOURCE_EXHAUSTED),
                (b"\0\xff\xff\xff\xff" + b"x" * 9000, RpcStatus.RESOURCE_EXHAUSTED),
            ]:
                number, head = raw.headers(b"/t.T/Sync")
                raw.send(head, frame(frames.DATA, END_STREAM, number, body))
                assert (await raw.response(number)).status == status
            resets = [
                (received.stream, received.code) for received in raw.received if received.kind == frames.RST_STREAM
            ]
            assert resets == [(1, frames.NO_ERROR)]  # it was refused before its message arrived
            assert listener.all_connections[0].reset_streams == {}

    run(test)


def test_call_without_data() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            for path, status in [(b"/t.T/Sync", RpcStatus.INVALID_ARGUMENT), (b"/t.T/Stream", OK), (b"/t.T/First", OK)]:
                number, head = raw.headers(path, flags=frames.END_HEADERS | END_STREAM)
                raw.send(head)
                assert (await raw.response(number))[:2] == (status, b"")

    run(test)


def test_other_requests_get_an_http_status() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            browser = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")]
            raw.send(frame(frames.HEADERS, frames.END_HEADERS | END_STREAM, 1, raw.encoder.encode(browser)))
            assert (await raw.response(1)).status == -405
            poster = [(b":method", b"POST"), *browser[1:], (b"content-type", b"text/plain")]
            raw.send(frame(frames.HEADERS, frames.END_HEADERS, 3, raw.encoder.encode(poster)))
            assert (await raw.response(3)).status == -415
            assert (await raw.next(frames.RST_STREAM)).code == frames.NO_ERROR
            raw.send(frame(frames.DATA, END_STREAM, 3, b"who reads this?"))
            assert await raw.sync() == []
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
            writer.close()

    run(test)


def test_handlers_read_metadata_and_set_response_headers() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            more = [(b"key-bin", b"AP8"), (b"key-bin", b"AQ"), (b"latin", b"\xe4\xff"), (b"grpc-timeout", b"99999999H")]
            assert (await raw.response(raw.call(b"/t.T/Async", b"", more))).status == OK
            call = listener.handlers.calls[0]
            assert (call.path, call.peer) == (b"/t.T/Async", "127.0.0.1")
            assert [field for field in call.metadata if field in more] == more
            assert call.deadline is not None
            response = await raw.response(raw.call(b"/t.T/Stream", b"a"))
            assert (response.headers[b"content-type"], response.headers[b"x-handler"]) == (
                b"application/grpc",
                b"stream",
            )

    run(test)


def test_unhandled_error_is_logged_and_hidden_from_the_client(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            response = await raw.response(raw.call(b"/t.T/Fails", b"secret"))
            assert (response.status, "secret" in response.message) == (RpcStatus.INTERNAL, False)
            assert (await raw.response(raw.call(b"/t.T/Sync", b"on"))).status == OK
            assert listener.log.lines.pop() == "unhandled error in gRPC call"

    run(test)
    assert "ZeroDivisionError: secret" in caplog.text


@pytest.mark.parametrize("path", [b"/t.T/Waits", b"/t.T/Unread"])
def test_deadline_cancels_the_handler(path: bytes) -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            response = await raw.response(raw.call(path, b"a", [(b"grpc-timeout", b"200m")]))
            assert response.status == RpcStatus.DEADLINE_EXCEEDED
            await until(lambda: listener.handlers.cancelled == 1)

    run(test)


@pytest.mark.parametrize("path", [b"/t.T/Sync", b"/t.T/Async", b"/t.T/Stream"])
def test_expired_deadline_skips_the_handler(path: bytes) -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            number = raw.call(path, b"a", [(b"grpc-timeout", b"0n")])
            assert (await raw.response(number))[:2] == (RpcStatus.DEADLINE_EXCEEDED, b"")
            assert listener.handlers.calls == []

    run(test)


def test_reset_calls_are_cancelled() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            whole = [raw.call(b"/t.T/Waits", b"a") for _ in range(10)]
            number, head = raw.headers(b"/t.T/Sync")
            raw.send(head, frame(frames.DATA, 0, number, message(b"x" * 9000)[:8000]))
            await until(lambda: listener.handlers.started == 10)
            raw.send(*[frames.rst_stream(taken, frames.CANCEL) for taken in [*whole, number]])
            assert await raw.sync() == []
            await until(lambda: listener.handlers.cancelled == 10)
            assert listener.all_connections[0].receiver._held.size == 0
            # later frames of these streams are errors that affect no other call
            raw.send(frame(frames.DATA, 0, number, b"x"))
            assert (await raw.response(raw.call(b"/t.T/Sync", b"b")))[:2] == (OK, message(b"b"))

    run(test)


def test_response_of_a_reset_call_is_discarded() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            number = raw.call(b"/t.T/IgnoresCancellation", b"a")
            await until(lambda: listener.handlers.started)
            raw.send(frames.rst_stream(number, frames.CANCEL))
            await until(lambda: listener.handlers.cancelled)
            assert await raw.sync() == []

    run(test)


def test_early_response_ignores_the_rest_of_the_request() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            number, head = raw.headers(b"/t.T/First")
            raw.send(head, frame(frames.DATA, 0, number, message(b"a") + message(b"b")))
            assert (await raw.response(number))[:2] == (OK, message(b"a"))
            assert (await raw.next(frames.RST_STREAM)).code == frames.NO_ERROR
            trailers = frame(
                frames.HEADERS, frames.END_HEADERS | END_STREAM, number, raw.encoder.encode([(b"a", b"b")])
            )
            raw.send(frame(frames.DATA, 0, number, b"x" * 1000), trailers)
            assert await raw.sync() == []

    run(test)


def test_sent_messages_precede_the_error() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 3}))
            number = raw.call(b"/t.T/Late", b"heard")
            await raw.next(frames.DATA)
            raw.send(frames.window_update(number, 100))
            response = await raw.response(number)
            assert (response.status, response.data, response.message) == (
                RpcStatus.ABORTED,
                message(b"heard"),
                "after all",
            )

    run(test)


def test_trailers_end_a_request() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            for fields, expected in [([(b"x", b"y")], OK), ([(b":path", b"/")], None)]:
                number, head = raw.headers(b"/t.T/Sync")
                flags = frames.END_HEADERS | END_STREAM
                trailers = frame(frames.HEADERS, flags, number, raw.encoder.encode(fields))
                raw.send(head, frame(frames.DATA, 0, number, message(b"a")), trailers)
                assert (await raw.response(number)).status == expected
            number, head = raw.headers(b"/t.T/Stream")
            raw.send(head, frame(frames.DATA, 0, number, message(b"a")))
            await raw.next(frames.DATA)  # now the handler waits for the next message
            raw.send(frame(frames.HEADERS, flags, number, raw.encoder.encode([(b"x", b"y")])))
            assert (await raw.response(number)).status == OK

    run(test)


def test_content_length_must_match() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            for length, code in [(b"6", None), (b"7", 1), (b"5", 1), (b"x", 1), (b"-6", 1)]:
                number = raw.call(b"/t.T/Sync", b"a", [(b"content-length", length)])
                assert (await raw.response(number)).code == code

    run(test)


def test_concurrent_streams_are_bounded() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            streams = [raw.call(b"/t.T/Waits", b"%d" % n) for n in range(MAX_STREAMS + 10)]
            for number in streams[MAX_STREAMS:]:
                assert (await raw.response(number)).code == frames.REFUSED_STREAM
            listener.handlers.proceed.set()
            for n, number in enumerate(streams[:MAX_STREAMS]):
                assert (await raw.response(number)).data == message(b"%d" % n) if n % 97 == 0 else True
            await until(lambda: not listener.all_connections[0].streams)

    run(test)


def test_aborted_connection_releases_everything() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(
                listener.port, frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 10})
            )
            raw.call(b"/t.T/Waits", b"a")
            raw.call(b"/t.T/Unread", b"a", [(b"grpc-timeout", b"1H")])
            raw.call(b"/t.T/Many", b"a" * 100)
            raw.call(b"/t.T/Large", b"90000")
            number, head = raw.headers(b"/t.T/Sync")
            raw.send(
                head, frame(frames.DATA, 0, number, message(b"x" * 9000)[:8000]), raw.headers(b"/t.T/Sync")[1][:-3]
            )
            await until(lambda: len(listener.all_connections[0].streams) == 5 and listener.handlers.started >= 3)
            raw.abort()
            await until(lambda: not listener.connections)
            await until(lambda: listener.handlers.cancelled == 3)

    run(test)


def test_stalled_peers_are_closed() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            silent = await RawClient.open(listener.port, b"")
            halfway = await RawClient.open(listener.port, CLIENT_PREFACE[:-5])
            slow = await RawClient.open(
                listener.port, frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 10})
            )
            half, head = slow.headers(b"/t.T/Sync")
            slow.send(head, frame(frames.DATA, 0, half, b"\0\0"))
            large, streaming = slow.call(b"/t.T/Large", b"90000"), slow.call(b"/t.T/Unread")
            await until(lambda: len(listener.all_connections) == 3 and listener.handlers.started == 1)
            now = listener.loop.time()
            listener.check_connections(now + PREFACE_TIMEOUT - 1)
            assert len(listener.connections) == 3
            listener.check_connections(now + PREFACE_TIMEOUT + 1)
            assert (await silent.end(), await halfway.end()) == (None, None)
            listener.check_connections(now + STALL_TIMEOUT + 1)
            assert (await slow.response(half)).code == (await slow.response(large)).code == frames.CANCEL
            listener.handlers.proceed.set()
            assert (await slow.response(streaming)).status == OK

    run(test)
