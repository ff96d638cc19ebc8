"""What connections share: turns of the event loop, memory, and how many of them there may be."""

from __future__ import annotations

import asyncio

import pytest

from headgate.service.connections import ConnectionBudget
from headgate.service.rpc import frames
from headgate.service.rpc.call import Status
from headgate.service.rpc.connection import CROWDED, IDLE, MAX_USELESS_FRAMES, Connection
from headgate.service.rpc.frames import frame
from headgate.service.rpc.incoming import LAST_CALL
from headgate.service.rpc.listener import LOOK_EVERY, MAX_IDLE, MAX_QUIET, MOST_SILENCE, NEW
from headgate.service.rpc.memory import FREE_BYTES, Memory
from headgate.service.rpc.scheduler import SLICE_WORK
from unit.service.rpc.house import House, Methods, house, run, until
from unit.service.rpc.raw_client import HELLO, Raw, message

PING = frame(frames.PING, 0, 0, b"12345678")
MANY = 4 * SLICE_WORK // (64 + 8)
"""Pings for more than three slices, and fewer than are too many."""


def bounded(listener: House, connections: int, size: int = 64 * 1024 * 1024) -> None:
    """Give a listener another budget."""
    listener.budget = ConnectionBudget(connections, size)
    listener.memory = Memory(listener.budget)


async def greeted(raw: Raw) -> Raw:
    await raw.pong()
    return raw


class Wire:
    """A transport without a socket that notes whose bytes are sent."""

    def __init__(self, name: str, sent: list[str], connection: Connection) -> None:
        self._name = name
        self._sent = sent
        connection.connection_made(self)

    def write(self, data: bytes) -> None:
        self._sent.append(self._name)

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> None:
        return None

    def pause_reading(self) -> None:
        self._sent.append(f"{self._name} pauses")

    def resume_reading(self) -> None:
        self._sent.append(f"{self._name} resumes")


def test_one_read_is_handled_in_slices_and_others_go_between() -> None:
    async def test() -> None:
        listener = House(Methods())
        sent: list[str] = []
        heavy, light = listener._connection(), listener._connection()
        Wire("heavy", sent, heavy)
        Wire("light", sent, light)
        heavy.data_received(HELLO + PING * MANY)
        assert sent == ["heavy", "heavy pauses"]
        light.data_received(HELLO + PING)
        assert sent[2:] == ["light pauses"]  # this turn is used up
        await until(lambda: "heavy resumes" in sent)
        assert sent[3:6] == ["light", "light resumes", "heavy"]  # who has had no slice comes first
        assert sent.count("heavy") >= 4
        assert sent.count("heavy pauses") == 1

    run(test)


def test_received_bytes_that_wait_are_counted_as_held() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await greeted(await Raw.open(listener.port))
            connection = listener.every[0]
            connection.data_received(PING * MANY)
            assert connection.held.size == len(PING) * MANY
            assert listener.budget.held_bytes >= len(PING) * MANY - FREE_BYTES
            await until(lambda: not connection._more)
            assert (connection.held.size, listener.budget.held_bytes) == (0, 0)
            raw.close()

    run(test)


@pytest.mark.parametrize("calls", [False, True])
def test_frames_without_use_are_counted_against_calls(calls: bool) -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await greeted(await Raw.open(listener.port, HELLO + frames.window_update(0, 2**30)))
            for _ in range(MAX_USELESS_FRAMES // 3):
                if calls:
                    raw.call(b"/t.T/AtOnce", b"a")
                raw.send(PING, frames.window_update(0, 1), frame(frames.PRIORITY, 0, 1, b"12345"))
            if calls:
                await raw.pong()
                return
            raw.send(PING * 10)
            farewell = await raw.end()
            assert farewell is not None
            assert farewell.code == frames.ENHANCE_YOUR_CALM
            assert b"too many frames that carry no call" in farewell.payload

    run(test)


def test_frames_without_use_are_forgotten_after_a_while() -> None:
    async def test() -> None:
        async with house() as listener:
            raw = await greeted(await Raw.open(listener.port))
            for _ in range(3):
                raw.send(PING * (MAX_USELESS_FRAMES - 100))
                await raw.pong()
                listener.look(listener.loop.time() + LOOK_EVERY)

    run(test)


def test_greediest_connection_is_closed_when_all_hold_too_much() -> None:
    async def test() -> None:
        async with house() as listener:
            bounded(listener, 10, 4 * 1024 * 1024 // 3 + 1)  # 1 MiB of them for gRPC
            begun = (1024 * 1024).to_bytes(5, "big") + b"x" * 16_000
            opened = HELLO + frames.settings({frames.INITIAL_WINDOW: 2**30}) + frames.window_update(0, 2**30)
            greedy, modest = await Raw.open(listener.port), await Raw.open(listener.port, opened)
            for raw, frames_of_it in ((greedy, 50), (modest, 5)):
                number, head = raw.head(b"/t.T/AtOnce")
                raw.send(head, frame(frames.DATA, 0, number, begun))
                raw.send(*[frame(frames.DATA, 0, number, b"x" * 16_000)] * frames_of_it)
                await raw.pong()
            assert len(listener.connections) == 2
            answer = await modest.answer(modest.call(b"/t.T/AtOnce", b"x" * 300_000))
            assert answer.status == 0
            farewell = await greedy.end()
            assert farewell is not None
            assert farewell.code == frames.ENHANCE_YOUR_CALM
            await until(lambda: listener.budget.held_bytes < 200_000)

    run(test)


def test_who_asks_for_most_is_refused_and_small_calls_are_not() -> None:
    async def test() -> None:
        async with house() as listener:
            bounded(listener, 10, 100_000)
            greedy, small = await Raw.open(listener.port), await Raw.open(listener.port)
            piece = message(b"x" * 200_000)[:16_000]
            for pieces in (8, 4):
                number, head = greedy.head(b"/t.T/AtOnce")
                greedy.send(head)
                for _ in range(pieces):
                    greedy.send(frame(frames.DATA, 0, number, piece))
                    await greedy.pong()
                if pieces == 8:
                    answer = await greedy.answer(number)
                    assert answer.status == Status.RESOURCE_EXHAUSTED
                    assert "all connections together hold too many bytes" in answer.told
            assert listener.budget.held_bytes > 40_000
            assert (await small.answer(small.call(b"/t.T/AtOnce", b"a"))).status == 0

    run(test)


def test_idle_connections_are_told_to_go_and_pings_do_not_keep_them() -> None:
    async def test() -> None:
        async with house() as listener:
            idle, watching = await Raw.open(listener.port), await Raw.open(listener.port)
            watching.call(b"/t.T/Waits")
            await until(lambda: listener.did.begun == 1)
            await greeted(idle)
            now = listener.loop.time()
            listener.look(now + MAX_IDLE - 1)
            await greeted(idle)
            assert not listener.every[0].leaving
            listener.look(now + MAX_IDLE + 1)
            farewell = await idle.next(frames.GOAWAY)
            assert (farewell.code, farewell.payload[8:]) == (frames.NO_ERROR, IDLE.encode())
            crossing = idle.call(b"/t.T/AtOnce", b"crossing")
            assert (await idle.answer(crossing)).data == message(b"crossing")
            idle.send(frame(frames.PING, frames.ACK, 0, LAST_CALL))
            last = await idle.end()
            assert last is not None
            assert frames.number(last.payload) == crossing
            assert not listener.every[1].leaving

    run(test)


def test_idle_connection_that_does_not_answer_is_closed_at_the_next_look() -> None:
    async def test() -> None:
        async with house() as listener:
            idle = await greeted(await Raw.open(listener.port))
            now = listener.loop.time()
            listener.look(now + MAX_IDLE + 1)
            listener.look(now + MAX_IDLE + 1 + LOOK_EVERY)
            assert await idle.end() is not None

    run(test)


def test_longest_idle_connection_makes_room_and_those_that_never_called_first() -> None:
    async def test() -> None:
        async with house() as listener:
            bounded(listener, 8)  # six of them for gRPC
            raws = [await greeted(await Raw.open(listener.port)) for _ in range(6)]
            await raws[0].answer(raws[0].call(b"/t.T/AtOnce"))
            for place, connection in enumerate(listener.every):
                connection.since -= NEW
                connection.last_call_at -= 10 - place
            newcomer = await greeted(await Raw.open(listener.port))
            farewell = await raws[1].end()
            assert farewell is not None
            assert (farewell.code, farewell.payload[8:]) == (frames.NO_ERROR, CROWDED.encode())
            assert (await newcomer.answer(newcomer.call(b"/t.T/AtOnce", b"a"))).status == 0
            assert (await raws[0].answer(raws[0].call(b"/t.T/AtOnce", b"a"))).status == 0
            assert listener.budget.connections("grpc") == 6

    run(test)


def test_connections_with_calls_make_room_only_after_a_while() -> None:
    async def test() -> None:
        async with house() as listener:
            bounded(listener, 4)  # three of them for gRPC
            raws = [await Raw.open(listener.port) for _ in range(3)]
            for raw in raws:
                raw.call(b"/t.T/Waits")
            await until(lambda: listener.did.begun == 3)
            refused = await Raw.open(listener.port)
            assert await refused.frame() is None
            assert [line for line in listener.told.lines if "all 3 connections are in use" in line]
            listener.told.lines.clear()
            listener.every[1].last_call_at -= MAX_QUIET + 1
            listener.look(listener.loop.time())  # an open call is not idle, and still has to make room
            listener._searched -= MAX_QUIET
            newcomer = await Raw.open(listener.port)
            assert (await newcomer.answer(newcomer.call(b"/t.T/AtOnce", b"a"))).status == 0
            assert await raws[1].end() is not None

    run(test)


def test_failed_connections_are_not_counted_for_ever() -> None:
    async def test() -> None:
        async with house() as listener:
            bounded(listener, 100)
            for _ in range(5):
                raw = await Raw.open(listener.port, b"")
                raw.cut()
            silent = await Raw.open(listener.port, b"")
            await until(lambda: len(listener.connections) == 1)
            assert listener.budget.connections("grpc") == 1
            listener.look(listener.loop.time() + MOST_SILENCE + 1)
            assert await silent.frame() is None
            await until(lambda: listener.budget.connections("grpc") == 0)

    run(test)


def test_accepting_pauses_when_the_system_has_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with house() as listener:
            tried = 0

            class Exhausted:
                def __init__(self, listening: object) -> None:
                    self._listening = listening

                def accept(self) -> None:
                    nonlocal tried
                    tried += 1
                    raise OSError(24, "Too many open files")

                def fileno(self) -> int:
                    return self._listening.fileno()  # type: ignore[attr-defined, no-any-return]

            listening = listener._listening
            listener._listening = Exhausted(listening)  # type: ignore[assignment]
            raw = await Raw.open(listener.port)
            await until(lambda: tried)
            for _ in range(100):
                await asyncio.sleep(0)
            assert tried == 1
            listener._listening = listening
            assert (await raw.answer(raw.call(b"/t.T/AtOnce", b"a"))).status == 0
            assert [line for line in listener.told.lines if "accept failed: Too many open files" in line]
            listener.told.lines.clear()

    run(test)
