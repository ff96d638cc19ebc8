"""Flow control and memory limits, in both directions."""

from __future__ import annotations

import asyncio
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET, socket

from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.call import RpcStatus
from crestgate.service.grpc.transport.frames import frame
from crestgate.service.grpc.transport.listener import STALL_TIMEOUT
from crestgate.service.grpc.transport.memory import MAX_HELD_BYTES
from crestgate.service.grpc.transport.stream import MAX_MESSAGE_BYTES, STREAM_WINDOW
from unit.service.grpc.transport.listener_harness import open_listener, run, until
from unit.service.grpc.transport.raw_client import CLIENT_PREFACE, RawClient, message

OK = 0


def preface_with_window(window: int) -> bytes:
    """A client preface with this initial window size."""
    return frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: window})


def sizes(raw: RawClient, number: int) -> list[int]:
    return [len(frame.payload) for frame in raw.received if frame.kind == frames.DATA and frame.stream == number]


def test_responses_are_split_by_the_window() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, preface_with_window(0))
            number = raw.call(b"/t.T/Large", b"40000")
            await raw.sync()
            assert sizes(raw, number) == []
            for taken in (1, 2, 16_384, 20_000, 1000):
                raw.send(frames.window_update(number, taken))
                await raw.sync()
            assert sizes(raw, number) == [1, 2, 16_384, 16_384, 3616, 1000]
            raw.send(frames.window_update(number, 100_000))
            response = await raw.response(number)
            assert (response.status, response.data) == (OK, message((b"40000," * 20_000)[:40_000]))

    run(test)


def test_max_frame_size_of_the_peer_is_used() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, CLIENT_PREFACE + frames.settings({frames.MAX_FRAME_SIZE: 20_000}))
            number = raw.call(b"/t.T/Large", b"50000")
            await raw.response(number)
            assert sizes(raw, number) == [20_000, 20_000, 10_005]

    run(test)


def test_shrunk_window_allows_negative_flow_control() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, preface_with_window(1000))
            number = raw.call(b"/t.T/Large", b"5000")
            await raw.sync()
            raw.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}), frames.window_update(number, 1000))
            await raw.sync()
            assert sizes(raw, number) == [1000]
            raw.send(frames.window_update(number, 1))
            await raw.sync()
            assert sizes(raw, number) == [1000, 1]
            both = b"\0\x04\x7f\xff\xff\xff" + b"\0\x04\0\0\0\x64"  # the last value applies
            raw.send(frame(frames.SETTINGS, 0, 0, both))
            await raw.sync()
            assert sizes(raw, number) == [1000, 1, 100]
            raw.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 10_000}))
            assert len((await raw.response(number)).data) == 5005

    run(test)


def test_settings_are_acknowledged_before_they_apply() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, preface_with_window(0))
            number = raw.call(b"/t.T/Sync", b"a")
            await raw.sync()
            at = len(raw.received)
            raw.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 10}))
            assert (await raw.response(number)).data == message(b"a")
            assert [received.kind for received in raw.received[at:]] == [frames.SETTINGS, frames.DATA, frames.HEADERS]

    run(test)


def test_streams_share_the_connection_window_fairly() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, preface_with_window(10**6))
            streams = [raw.call(b"/t.T/Large", b"100000") for _ in range(4)]
            await raw.sync()
            assert [sum(sizes(raw, number)) for number in streams] == [65_535, 0, 0, 0]
            at = len(raw.received)
            raw.send(frames.window_update(0, 5 * 16_384 + 7))
            await raw.sync()
            turns = [
                (received.stream, len(received.payload))
                for received in raw.received[at:]
                if received.kind == frames.DATA
            ]
            one, three, five, seven = streams
            assert turns == [(one, 16_384), (three, 16_384), (five, 16_384), (seven, 16_384), (one, 16_384), (three, 7)]
            # once the window opens, a small response does not wait for the large ones
            quick = raw.call(b"/t.T/Sync", b"quick")
            raw.send(frames.rst_stream(five, frames.CANCEL), frames.window_update(0, 3 * 16_384 + 10))
            assert (await raw.response(quick)).data == message(b"quick")
            raw.send(frames.window_update(0, 10**6))
            for number in (one, three, seven):
                assert len((await raw.response(number)).data) == 100_005
            assert sum(sizes(raw, five)) == 16_384

    run(test)


def test_invalid_windows_are_errors() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, preface_with_window(1))
            for change in (0, 2**31 - 1):
                number = raw.call(b"/t.T/Waits", b"100")
                raw.send(frames.window_update(number, change))
                expected = frames.FLOW_CONTROL_ERROR if change else frames.PROTOCOL_ERROR
                assert (await raw.response(number)).code == expected
            raw.send(frames.window_update(0, 2**31 - 1))
            goaway = await raw.end()
            assert goaway is not None
            assert goaway.code == frames.FLOW_CONTROL_ERROR

    run(test)


def test_deadline_discards_pending_data() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, preface_with_window(10**6))
            number = raw.call(b"/t.T/Large", b"90000", [(b"grpc-timeout", b"1H")])
            await raw.sync()
            connection = listener.all_connections[0]
            connection.sender.deadline_exceeded(connection.streams[number])
            response = await raw.response(number)
            assert (response.status, len(response.data)) == (RpcStatus.DEADLINE_EXCEEDED, 65_535)
            raw.send(frames.window_update(0, 10**6), frames.window_update(number, 10**6))
            assert await raw.sync() == []

    run(test)


def test_pending_responses_are_bounded() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, preface_with_window(0))
            streams = [raw.call(b"/t.T/Large", b"1048000") for _ in range(32)]
            response = await raw.response(streams[-1])
            assert (response.status, response.data) == (RpcStatus.RESOURCE_EXHAUSTED, b"")
            connection = listener.all_connections[0]
            assert len(connection.streams) == 31
            listener.check_connections(listener.loop.time() + STALL_TIMEOUT + 1)
            assert [(await raw.response(number)).code for number in streams[:31]] == [frames.CANCEL] * 31
            assert connection.held.size == 0

    run(test)


def test_incomplete_requests_are_bounded() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            part = [frame(frames.DATA, 0, 0, b"x" * 16_384)[9:]] * 63
            streams = []
            for _ in range(34):
                number, head = raw.headers(b"/t.T/Sync")
                streams.append(number)
                raw.send(head, frame(frames.DATA, 0, number, message(b"x" * MAX_MESSAGE_BYTES)[:9000]))
                raw.send(*[frame(frames.DATA, 0, number, data) for data in part])
            response = await raw.response(streams[-1])
            assert response.status == RpcStatus.RESOURCE_EXHAUSTED
            assert listener.all_connections[0].held.size <= MAX_HELD_BYTES
            raw.send(frames.rst_stream(streams[0], frames.CANCEL))
            assert (await raw.response(raw.call(b"/t.T/Sync", b"again"))).data == message(b"again")
            assert (
                sum([1 for received in raw.received if received.kind == frames.WINDOW_UPDATE and received.stream == 0])
                > 5
            )

    run(test)


def test_small_messages_count_with_their_overhead() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            number, head = raw.headers(b"/t.T/Unread")
            raw.send(head)
            await raw.sync()
            empty = listener.all_connections[0].held.size
            raw.send(frame(frames.DATA, 0, number, message(b"ab") * 2000))
            await raw.sync()
            assert listener.all_connections[0].held.size - empty == 2000 * (7 + 64)
            listener.handlers.proceed.set()
            raw.send(frame(frames.DATA, frames.END_STREAM, number, b""))
            assert (await raw.response(number)).data == message(b"2") * 2000
            assert listener.all_connections[0].held.size == 0

    run(test)


def test_unread_stream_is_bounded_by_its_window() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            number, head = raw.headers(b"/t.T/Unread")
            piece, fit = message(b"x" * 16_379), STREAM_WINDOW // 16_384
            raw.send(head, *[frame(frames.DATA, 0, number, piece)] * fit)
            assert [received for received in await raw.sync() if received.stream == number] == []
            listener.handlers.proceed.set()
            credit = await raw.next(frames.WINDOW_UPDATE)
            while credit.stream != number:
                credit = await raw.next(frames.WINDOW_UPDATE)
            raw.send(frame(frames.DATA, frames.END_STREAM, number, piece))
            assert (await raw.response(number)).data == message(b"16379") * (fit + 1)
            listener.handlers.proceed.clear()
            other, head = raw.headers(b"/t.T/Unread")
            raw.send(head, *[frame(frames.DATA, 0, other, piece)] * (fit + 1))
            assert (await raw.response(other)).code == frames.FLOW_CONTROL_ERROR

    run(test)


def test_largest_message_fits_behind_another() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            number, head = raw.headers(b"/t.T/Unread")
            raw.send(head)
            listener.handlers.proceed.set()
            window, data, at = STREAM_WINDOW, message(b"x" * 32_000) + message(b"y" * MAX_MESSAGE_BYTES) * 2, 0
            while at < len(data):
                if not window:
                    credit = await raw.next(frames.WINDOW_UPDATE)
                    window += frames.read_uint32(credit.payload) if credit.stream == number else 0
                size = min(window, 16_000, len(data) - at)
                raw.send(frame(frames.DATA, 0, number, data[at : at + size]))
                at, window = at + size, window - size
            raw.send(frame(frames.DATA, frames.END_STREAM, number, b""))
            assert (await raw.response(number)).data == message(b"32000") + message(b"1048576") * 2

    run(test)


def test_padding_is_credited() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port)
            number, head = raw.headers(b"/t.T/Sync")
            raw.send(head)
            for byte in message(b"x" * 5000):
                raw.send(frame(frames.DATA, frames.PADDED, number, b"\xff" + bytes([byte]) + b"\0" * 255))
            raw.send(frame(frames.DATA, frames.PADDED | frames.END_STREAM, number, b"\x02\0\0"))
            response = await raw.response(number)
            assert (response.status, response.data) == (OK, message(b"x" * 5000))

    run(test)


def test_message_in_tiny_frames_is_assembled_in_linear_time() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, CLIENT_PREFACE + frames.window_update(0, 10**7))
            raw.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 10**7}))
            number, head = raw.headers(b"/t.T/Sync")
            body = message(b"x" * 900_000)
            whole = [body[at : at + 16_384] for at in range(0, 890_000, 16_384)]
            raw.send(head, *[frame(frames.DATA, 0, number, piece) for piece in whole])
            rest = body[len(whole) * 16_384 :]
            raw.send(b"".join([frame(frames.DATA, 0, number, rest[at : at + 1]) for at in range(len(rest))]))
            raw.send(frame(frames.DATA, frames.END_STREAM, number, b""))
            assert len((await raw.response(number)).data) == len(body)

    run(test)


def test_peer_that_does_not_read_is_paused_and_then_closed() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            # fixed, because the kernel grows the buffers of a busy connection
            client = socket()
            client.setsockopt(SOL_SOCKET, SO_RCVBUF, 65_536)
            client.connect(("127.0.0.1", listener.port))
            raw = RawClient(*await asyncio.open_connection(sock=client, limit=65_536))
            raw.send(CLIENT_PREFACE + frames.window_update(0, 2**31 - 70_000))
            raw.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31 - 1}))
            await raw.sync()
            connection = listener.all_connections[0]
            server = connection._transport.get_extra_info("socket")
            server.setsockopt(SOL_SOCKET, SO_SNDBUF, 65_536)
            size = len(message(b"x" * 100_000))
            raw.call(b"/t.T/Many", b"x" * 100_000)
            await until(lambda: connection.sender.paused)
            for _ in range(500):
                raw.call(b"/t.T/Sync", b"x" * 16_000)
            other = await RawClient.open(listener.port)
            await until(lambda: not connection._transport.is_reading())
            assert (await other.response(other.call(b"/t.T/Sync", b"a"))).status == OK
            assert (await other.response(other.call(b"/t.T/Sync", b"b"))).status == OK
            system = server.getsockopt(SOL_SOCKET, SO_SNDBUF) + client.getsockopt(SOL_SOCKET, SO_RCVBUF)
            read_ahead = 2 * 65_536 + 262_144  # twice the limit, after which the client's loop stops, and one read
            written = connection._transport.get_write_buffer_size()
            # every started message is in one of the buffers, except for the one that waits
            assert listener.handlers.started * size <= system + read_ahead + written + connection.held.size + size
            assert written < 1_000_000
            assert connection.held.size < 2_000_000
            assert len(listener.handlers.calls) < 250
            listener.check_connections(listener.loop.time() + STALL_TIMEOUT + 1)
            await until(lambda: listener.handlers.cancelled == 1)
            assert connection not in listener.connections

    run(test)


def test_reading_resumes_delivery() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, CLIENT_PREFACE + frames.window_update(0, 2**31 - 70_000))
            raw.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31 - 1}))
            number = raw.call(b"/t.T/Many", b"x" * 100_000)
            await until(lambda: listener.all_connections and listener.all_connections[0].sender.paused)
            started = listener.handlers.started
            while listener.handlers.started < started + 5:
                await raw.next(frames.DATA)
            raw.send(frames.rst_stream(number, frames.CANCEL))
            assert (await raw.response(raw.call(b"/t.T/Sync", b"a")))[:2] == (OK, message(b"a"))
            await until(lambda: listener.handlers.cancelled == 1)

    run(test)


def test_calls_sent_while_paused_are_answered() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await RawClient.open(listener.port, CLIENT_PREFACE + frames.window_update(0, 2**31 - 70_000))
            streams = [raw.call(b"/t.T/Sync", b"x" * 16_000) for _ in range(1000)]
            await until(lambda: listener.all_connections and listener.all_connections[0].sender.paused)
            await until(lambda: not listener.all_connections[0]._transport.is_reading())
            assert len((await raw.response(streams[-1])).data) == 16_005

    run(test)
