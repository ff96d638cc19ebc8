"""How many bytes each side takes at a time: never more than it has said, and everybody gets a turn."""

from __future__ import annotations

from headgate.service.rpc import frames
from headgate.service.rpc.call import Status
from headgate.service.rpc.frames import frame
from headgate.service.rpc.listener import MOST_PATIENCE
from headgate.service.rpc.memory import MAX_HELD_BYTES
from headgate.service.rpc.stream import MOST_MESSAGE_BYTES, STREAM_WINDOW
from unit.service.rpc.house import house, run, until
from unit.service.rpc.raw_client import HELLO, Raw, message

OK = 0


def small(window: int) -> bytes:
    """A greeting of who takes so little of each stream."""
    return frames.PREFACE + frames.settings({frames.INITIAL_WINDOW: window})


def sizes(raw: Raw, number: int) -> list[int]:
    return [len(came.payload) for came in raw.came if came.kind == frames.DATA and came.stream == number]


def test_an_answer_goes_out_in_the_pieces_that_are_taken() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, small(0))
            number = raw.call(b"/t.T/Large", b"40000")
            await raw.pong()
            assert sizes(raw, number) == []
            for taken in (1, 2, 16_384, 20_000, 1000):
                raw.send(frames.window_update(number, taken))
                await raw.pong()
            assert sizes(raw, number) == [1, 2, 16_384, 16_384, 3616, 1000]
            raw.send(frames.window_update(number, 100_000))
            answer = await raw.answer(number)
            assert (answer.status, answer.data) == (OK, message((b"40000," * 20_000)[:40_000]))

    run(test)


def test_longer_frames_are_sent_to_who_takes_them() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, HELLO + frames.settings({frames.MOST_FRAME: 20_000}))
            number = raw.call(b"/t.T/Large", b"50000")
            await raw.answer(number)
            assert sizes(raw, number) == [20_000, 20_000, 10_005]

    run(test)


def test_a_window_that_is_made_smaller_goes_below_nothing() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, small(1000))
            number = raw.call(b"/t.T/Large", b"5000")
            await raw.pong()
            raw.send(frames.settings({frames.INITIAL_WINDOW: 0}), frames.window_update(number, 1000))
            await raw.pong()
            assert sizes(raw, number) == [1000]
            raw.send(frames.window_update(number, 1))
            await raw.pong()
            assert sizes(raw, number) == [1000, 1]
            both = b"\0\x04\x7f\xff\xff\xff" + b"\0\x04\0\0\0\x64"  # what is set last counts
            raw.send(frame(frames.SETTINGS, 0, 0, both))
            await raw.pong()
            assert sizes(raw, number) == [1000, 1, 100]
            raw.send(frames.settings({frames.INITIAL_WINDOW: 10_000}))
            assert len((await raw.answer(number)).data) == 5005

    run(test)


def test_settings_are_acknowledged_before_they_are_made_use_of() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, small(0))
            number = raw.call(b"/t.T/AtOnce", b"a")
            await raw.pong()
            at = len(raw.came)
            raw.send(frames.settings({frames.INITIAL_WINDOW: 10}))
            assert (await raw.answer(number)).data == message(b"a")
            assert [came.kind for came in raw.came[at:]] == [frames.SETTINGS, frames.DATA, frames.HEADERS]

    run(test)


def test_streams_that_wait_for_the_window_of_all_take_turns() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, small(10**6))
            asked = [raw.call(b"/t.T/Large", b"100000") for _ in range(4)]
            await raw.pong()
            assert [sum(sizes(raw, number)) for number in asked] == [65_535, 0, 0, 0]
            at = len(raw.came)
            raw.send(frames.window_update(0, 5 * 16_384 + 7))
            await raw.pong()
            turns = [(came.stream, len(came.payload)) for came in raw.came[at:] if came.kind == frames.DATA]
            one, three, five, seven = asked
            assert turns == [(one, 16_384), (three, 16_384), (five, 16_384), (seven, 16_384), (one, 16_384), (three, 7)]
            # who asks for little has not to wait until those are through, once there is room
            quick = raw.call(b"/t.T/AtOnce", b"quick")
            raw.send(frames.reset(five, frames.CANCEL), frames.window_update(0, 3 * 16_384 + 10))
            assert (await raw.answer(quick)).data == message(b"quick")
            raw.send(frames.window_update(0, 10**6))
            for number in (one, three, seven):
                assert len((await raw.answer(number)).data) == 100_005
            assert sum(sizes(raw, five)) == 16_384

    run(test)


def test_windows_that_cannot_be() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, small(1))
            for change in (0, 2**31 - 1):
                number = raw.call(b"/t.T/Waits", b"100")
                raw.send(frames.window_update(number, change))
                expected = frames.FLOW_CONTROL_ERROR if change else frames.PROTOCOL_ERROR
                assert (await raw.answer(number)).code == expected
            raw.send(frames.window_update(0, 2**31 - 1))
            farewell = await raw.end()
            assert farewell is not None
            assert farewell.code == frames.FLOW_CONTROL_ERROR

    run(test)


def test_a_deadline_ends_an_answer_that_waits_and_nothing_comes_behind() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, small(10**6))
            number = raw.call(b"/t.T/Large", b"90000", [(b"grpc-timeout", b"1H")])
            await raw.pong()
            connection = listener.every[0]
            connection.replies.late(connection.streams[number])
            answer = await raw.answer(number)
            assert (answer.status, len(answer.data)) == (Status.DEADLINE_EXCEEDED, 65_535)
            raw.send(frames.window_update(0, 10**6), frames.window_update(number, 10**6))
            assert await raw.pong() == []

    run(test)


def test_who_lets_too_much_wait_gets_no_more() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, small(0))
            asked = [raw.call(b"/t.T/Large", b"1048000") for _ in range(32)]
            answer = await raw.answer(asked[-1])
            assert (answer.status, answer.data) == (Status.RESOURCE_EXHAUSTED, b"")
            connection = listener.every[0]
            assert len(connection.streams) == 31
            listener.look(listener.loop.time() + MOST_PATIENCE + 1)
            assert [(await raw.answer(number)).code for number in asked[:31]] == [frames.CANCEL] * 31
            assert connection.held.size == 0

    run(test)


def test_who_sends_too_much_at_once_gets_no_more() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            part = [frame(frames.DATA, 0, 0, b"x" * 16_384)[9:]] * 63
            began = []
            for _ in range(34):
                number, head = raw.head(b"/t.T/AtOnce")
                began.append(number)
                raw.send(head, frame(frames.DATA, 0, number, message(b"x" * MOST_MESSAGE_BYTES)[:9000]))
                raw.send(*[frame(frames.DATA, 0, number, data) for data in part])
            answer = await raw.answer(began[-1])
            assert answer.status == Status.RESOURCE_EXHAUSTED
            assert listener.every[0].held.size <= MAX_HELD_BYTES
            raw.send(frames.reset(began[0], frames.CANCEL))
            assert (await raw.answer(raw.call(b"/t.T/AtOnce", b"again"))).data == message(b"again")
            assert sum([1 for came in raw.came if came.kind == frames.WINDOW_UPDATE and came.stream == 0]) > 5

    run(test)


def test_many_small_messages_count_for_what_it_takes_to_keep_them() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            number, head = raw.head(b"/t.T/Deaf")
            raw.send(head)
            await raw.pong()
            empty = listener.every[0].held.size
            raw.send(frame(frames.DATA, 0, number, message(b"ab") * 2000))
            await raw.pong()
            assert listener.every[0].held.size - empty == 2000 * (7 + 64)
            listener.did.go_on.set()
            raw.send(frame(frames.DATA, frames.END_STREAM, number, b""))
            assert (await raw.answer(number)).data == message(b"2") * 2000
            assert listener.every[0].held.size == 0

    run(test)


def test_a_stream_that_nobody_reads_is_not_let_grow() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            number, head = raw.head(b"/t.T/Deaf")
            piece, fit = message(b"x" * 16_379), STREAM_WINDOW // 16_384
            raw.send(head, *[frame(frames.DATA, 0, number, piece)] * fit)
            assert [came for came in await raw.pong() if came.stream == number] == []
            listener.did.go_on.set()
            credit = await raw.next(frames.WINDOW_UPDATE)
            while credit.stream != number:
                credit = await raw.next(frames.WINDOW_UPDATE)
            raw.send(frame(frames.DATA, frames.END_STREAM, number, piece))
            assert (await raw.answer(number)).data == message(b"16379") * (fit + 1)
            listener.did.go_on.clear()
            other, head = raw.head(b"/t.T/Deaf")
            raw.send(head, *[frame(frames.DATA, 0, other, piece)] * (fit + 1))
            assert (await raw.answer(other)).code == frames.FLOW_CONTROL_ERROR

    run(test)


def test_the_longest_message_fits_behind_any_other() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            number, head = raw.head(b"/t.T/Deaf")
            raw.send(head)
            listener.did.go_on.set()
            window, asked, at = STREAM_WINDOW, message(b"x" * 32_000) + message(b"y" * MOST_MESSAGE_BYTES) * 2, 0
            while at < len(asked):
                if not window:
                    credit = await raw.next(frames.WINDOW_UPDATE)
                    window += frames.number(credit.payload) if credit.stream == number else 0
                size = min(window, 16_000, len(asked) - at)
                raw.send(frame(frames.DATA, 0, number, asked[at : at + size]))
                at, window = at + size, window - size
            raw.send(frame(frames.DATA, frames.END_STREAM, number, b""))
            assert (await raw.answer(number)).data == message(b"32000") + message(b"1048576") * 2

    run(test)


def test_padding_is_no_part_of_a_message_and_is_given_back() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port)
            number, head = raw.head(b"/t.T/AtOnce")
            raw.send(head)
            for byte in message(b"x" * 5000):
                raw.send(frame(frames.DATA, frames.PADDED, number, b"\xff" + bytes([byte]) + b"\0" * 255))
            raw.send(frame(frames.DATA, frames.PADDED | frames.END_STREAM, number, b"\x02\0\0"))
            answer = await raw.answer(number)
            assert (answer.status, answer.data) == (OK, message(b"x" * 5000))

    run(test)


def test_a_message_in_frames_of_one_byte_is_put_together_in_a_time_that_grows_with_its_length() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, HELLO + frames.window_update(0, 10**7))
            raw.send(frames.settings({frames.INITIAL_WINDOW: 10**7}))
            number, head = raw.head(b"/t.T/AtOnce")
            body = message(b"x" * 900_000)
            whole = [body[at : at + 16_384] for at in range(0, 890_000, 16_384)]
            raw.send(head, *[frame(frames.DATA, 0, number, piece) for piece in whole])
            rest = body[len(whole) * 16_384 :]
            raw.send(b"".join([frame(frames.DATA, 0, number, rest[at : at + 1]) for at in range(len(rest))]))
            raw.send(frame(frames.DATA, frames.END_STREAM, number, b""))
            assert len((await raw.answer(number)).data) == len(body)

    run(test)


def test_a_peer_that_does_not_read_is_not_read_from_and_at_last_let_go() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, HELLO + frames.window_update(0, 2**31 - 70_000))
            raw.send(frames.settings({frames.INITIAL_WINDOW: 2**31 - 1}))
            raw.call(b"/t.T/Many", b"x" * 100_000)
            await until(lambda: listener.every and listener.every[0].replies.paused)
            connection = listener.every[0]
            said = listener.did.begun
            for _ in range(500):
                raw.call(b"/t.T/AtOnce", b"x" * 16_000)
            other = await Raw.open(listener.port)
            await until(lambda: not connection._transport.is_reading())
            assert (await other.answer(other.call(b"/t.T/AtOnce", b"a"))).status == OK
            assert (await other.answer(other.call(b"/t.T/AtOnce", b"b"))).status == OK
            assert listener.did.begun <= said + 100, "no more than what the buffers of the system take"
            assert connection._transport.get_write_buffer_size() < 1_000_000
            assert connection.held.size < 2_000_000
            assert len(listener.did.calls) < 250
            listener.look(listener.loop.time() + MOST_PATIENCE + 1)
            await until(lambda: listener.did.cancelled == 1)
            assert listener.every[0] not in listener.connections

    run(test)


def test_a_peer_that_reads_again_is_read_from_again() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, HELLO + frames.window_update(0, 2**31 - 70_000))
            raw.send(frames.settings({frames.INITIAL_WINDOW: 2**31 - 1}))
            number = raw.call(b"/t.T/Many", b"x" * 100_000)
            await until(lambda: listener.every and listener.every[0].replies.paused)
            said = listener.did.begun
            while listener.did.begun < said + 5:
                await raw.next(frames.DATA)
            raw.send(frames.reset(number, frames.CANCEL))
            assert (await raw.answer(raw.call(b"/t.T/AtOnce", b"a")))[:2] == (OK, message(b"a"))
            await until(lambda: listener.did.cancelled == 1)

    run(test)


def test_what_was_asked_while_nothing_was_read_is_answered_in_the_end() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await Raw.open(listener.port, HELLO + frames.window_update(0, 2**31 - 70_000))
            asked = [raw.call(b"/t.T/AtOnce", b"x" * 16_000) for _ in range(1000)]
            await until(lambda: listener.every and listener.every[0].replies.paused)
            await until(lambda: not listener.every[0]._transport.is_reading())
            assert len((await raw.answer(asked[-1])).data) == 16_005

    run(test)
