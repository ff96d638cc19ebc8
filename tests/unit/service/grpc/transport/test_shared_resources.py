"""Resources that connections share: iterations of the event loop, memory, and the number of connections."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hpack import Encoder

from crestgate.runtime.connection_budget import ConnectionBudget
from crestgate.runtime.scheduler import SLICE_WORK
from crestgate.service.grpc.transport import frames, requests
from crestgate.service.grpc.transport.call import Method, RpcCall, RpcStatus
from crestgate.service.grpc.transport.connection import IDLE, MAX_USELESS_FRAMES, TOO_MANY_CONNECTIONS, Http2Connection
from crestgate.service.grpc.transport.frames import frame
from crestgate.service.grpc.transport.listener import (
    CHECK_INTERVAL,
    IDLE_TIMEOUT,
    NEW_SECONDS,
    PREFACE_TIMEOUT,
    QUIET_SECONDS,
)
from crestgate.service.grpc.transport.memory import FREE_BYTES, MemoryBudget
from crestgate.service.grpc.transport.receiver import DRAIN_PING
from unit.service.grpc.transport.listener_harness import Handlers, ListenerHarness, open_listener, run, until
from unit.service.grpc.transport.raw_client import CLIENT_PREFACE, RawClient, message

PING = frame(frames.PING, 0, 0, b"12345678")
MANY = 4 * SLICE_WORK // (64 + 8)
"""Pings for more than three slices, but below the limit of glitches."""


def set_budget(listener: ListenerHarness, connections: int, size: int = 64 * 1024 * 1024) -> None:
    """Give a listener another budget."""
    listener.budget = ConnectionBudget(connections, size)
    listener.memory = MemoryBudget(listener.budget)


async def synced(raw: RawClient) -> RawClient:
    await raw.sync()
    return raw


class Wire:
    """A transport without a socket that records which connection sends."""

    def __init__(self, name: str, sent: list[str], connection: Http2Connection) -> None:
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


def test_small_read_that_completes_long_messages_is_handled_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last frame of each is empty: what its handler takes is counted by the clock."""
    now = 0.0
    monkeypatch.setattr(requests, "perf_counter", lambda: now)

    async def test() -> None:
        handlers = Handlers()
        listener = ListenerHarness(handlers)
        connection = listener._create_connection()
        Wire("peer", [], connection)
        encoder = Encoder()
        connection.data_received(CLIENT_PREFACE)
        streams = range(1, 21, 2)
        for stream in streams:
            block = encoder.encode(RawClient.fields(b"/t.T/Slow"))
            connection.data_received(frame(frames.HEADERS, frames.END_HEADERS, stream, block))
            connection.data_received(frame(frames.DATA, 0, stream, message(b"x" * 200)))
        connection.data_received(b"".join(frame(frames.DATA, frames.END_STREAM, stream, b"") for stream in streams))
        assert handlers.started == 1  # one took a whole slice
        await until(lambda: handlers.started == len(streams))

    def slow(self: Handlers, call: RpcCall, data: bytes) -> bytes:
        nonlocal now
        self.started += 1
        now += 0.001
        return data

    by_path = Handlers.by_path
    monkeypatch.setattr(Handlers, "by_path", lambda self: {**by_path(self), b"/t.T/Slow": Method(partial(slow, self))})
    run(test)


def test_large_reads_are_handled_in_slices() -> None:
    async def test() -> None:
        listener = ListenerHarness(Handlers())
        sent: list[str] = []
        heavy, light = listener._create_connection(), listener._create_connection()
        Wire("heavy", sent, heavy)
        Wire("light", sent, light)
        heavy.data_received(CLIENT_PREFACE + PING * MANY)
        assert sent == ["heavy", "heavy pauses"]
        light.data_received(CLIENT_PREFACE + PING)
        assert sent[2:] == ["light pauses"]  # this turn is used up
        await until(lambda: "heavy resumes" in sent)
        assert sent[3:6] == ["light", "light resumes", "heavy"]  # a connection that had no slice comes first
        assert sent.count("heavy") >= 4
        assert sent.count("heavy pauses") == 1

    run(test)


def test_unhandled_input_is_counted_as_held() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await synced(await RawClient.open(listener.port))
            connection = listener.all_connections[0]
            connection.data_received(PING * MANY)
            assert connection.held.size == len(PING) * MANY
            assert listener.budget.held_bytes >= len(PING) * MANY - FREE_BYTES
            await until(lambda: not connection._has_input)
            assert (connection.held.size, listener.budget.held_bytes) == (0, 0)
            raw.close()

    run(test)


@pytest.mark.parametrize("calls", [False, True])
def test_useless_frames_are_bounded_relative_to_calls(calls: bool) -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await synced(await RawClient.open(listener.port, CLIENT_PREFACE + frames.window_update(0, 2**30)))
            for _ in range(MAX_USELESS_FRAMES // 3):
                if calls:
                    raw.call(b"/t.T/Sync", b"a")
                raw.send(PING, frames.window_update(0, 1), frame(frames.PRIORITY, 0, 1, b"12345"))
            if calls:
                await raw.sync()
                return
            raw.send(PING * 10)
            goaway = await raw.end()
            assert goaway is not None
            assert goaway.code == frames.ENHANCE_YOUR_CALM
            assert b"too many frames without a call" in goaway.payload

    run(test)


def test_useless_frames_are_reset_by_the_periodic_check() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            raw = await synced(await RawClient.open(listener.port))
            for _ in range(3):
                raw.send(PING * (MAX_USELESS_FRAMES - 100))
                await raw.sync()
                listener.check_connections(listener.loop.time() + CHECK_INTERVAL)

    run(test)


def test_largest_connection_is_closed_when_memory_is_used_up() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            set_budget(listener, 10, 4 * 1024 * 1024 // 3 + 1)  # 1 MiB of them for gRPC
            partial = (1024 * 1024).to_bytes(5, "big") + b"x" * 16_000
            opened = (
                CLIENT_PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 2**30}) + frames.window_update(0, 2**30)
            )
            greedy, modest = await RawClient.open(listener.port), await RawClient.open(listener.port, opened)
            for raw, frames_of_it in ((greedy, 50), (modest, 5)):
                number, head = raw.headers(b"/t.T/Sync")
                raw.send(head, frame(frames.DATA, 0, number, partial))
                raw.send(*[frame(frames.DATA, 0, number, b"x" * 16_000)] * frames_of_it)
                await raw.sync()
            assert len(listener.connections) == 2
            response = await modest.response(modest.call(b"/t.T/Sync", b"x" * 300_000))
            assert response.status == 0
            goaway = await greedy.end()
            assert goaway is not None
            assert goaway.code == frames.ENHANCE_YOUR_CALM
            await until(lambda: listener.budget.held_bytes < 200_000)

    run(test)


def test_memory_limit_fails_large_calls_and_not_small_ones() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            set_budget(listener, 10, 100_000)
            greedy, small = await RawClient.open(listener.port), await RawClient.open(listener.port)
            piece = message(b"x" * 200_000)[:16_000]
            for pieces in (8, 4):
                number, head = greedy.headers(b"/t.T/Sync")
                greedy.send(head)
                for _ in range(pieces):
                    greedy.send(frame(frames.DATA, 0, number, piece))
                    await greedy.sync()
                if pieces == 8:
                    response = await greedy.response(number)
                    assert response.status == RpcStatus.RESOURCE_EXHAUSTED
                    assert "all connections together hold too many bytes" in response.message
            assert listener.budget.held_bytes > 40_000
            assert (await small.response(small.call(b"/t.T/Sync", b"a"))).status == 0

    run(test)


def test_idle_connections_are_drained_despite_pings() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            idle, watching = await RawClient.open(listener.port), await RawClient.open(listener.port)
            watching.call(b"/t.T/Waits")
            await until(lambda: listener.handlers.started == 1)
            await synced(idle)
            now = listener.loop.time()
            listener.check_connections(now + IDLE_TIMEOUT - 1)
            await synced(idle)
            assert not listener.all_connections[0].draining
            listener.check_connections(now + IDLE_TIMEOUT + 1)
            goaway = await idle.next(frames.GOAWAY)
            assert (goaway.code, goaway.payload[8:]) == (frames.NO_ERROR, IDLE.encode())
            crossing = idle.call(b"/t.T/Sync", b"crossing")
            assert (await idle.response(crossing)).data == message(b"crossing")
            idle.send(frame(frames.PING, frames.ACK, 0, DRAIN_PING))
            last = await idle.end()
            assert last is not None
            assert frames.read_uint32(last.payload) == crossing
            assert not listener.all_connections[1].draining

    run(test)


def test_unresponsive_idle_connection_is_closed_at_the_next_check() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            idle = await synced(await RawClient.open(listener.port))
            now = listener.loop.time()
            listener.check_connections(now + IDLE_TIMEOUT + 1)
            listener.check_connections(now + IDLE_TIMEOUT + 1 + CHECK_INTERVAL)
            assert await idle.end() is not None

    run(test)


def test_eviction_prefers_connections_without_calls() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            set_budget(listener, 8)  # six of them for gRPC
            raws = [await synced(await RawClient.open(listener.port)) for _ in range(6)]
            await raws[0].response(raws[0].call(b"/t.T/Sync"))
            for number, connection in enumerate(listener.all_connections):
                connection.opened_at -= NEW_SECONDS
                connection.last_call_at -= 10 - number
            newcomer = await synced(await RawClient.open(listener.port))
            goaway = await raws[1].end()
            assert goaway is not None
            assert (goaway.code, goaway.payload[8:]) == (frames.NO_ERROR, TOO_MANY_CONNECTIONS.encode())
            assert (await newcomer.response(newcomer.call(b"/t.T/Sync", b"a"))).status == 0
            assert (await raws[0].response(raws[0].call(b"/t.T/Sync", b"a"))).status == 0
            assert listener.budget.connections("grpc") == 6

    run(test)


def test_connections_with_open_calls_are_evicted_after_a_while() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            set_budget(listener, 4)  # three of them for gRPC
            raws = [await RawClient.open(listener.port) for _ in range(3)]
            for raw in raws:
                raw.call(b"/t.T/Waits")
            await until(lambda: listener.handlers.started == 3)
            refused = await RawClient.open(listener.port)
            assert await refused.frame() is None
            assert [line for line in listener.log.lines if "all 3 connections are in use" in line]
            listener.log.lines.clear()
            listener.all_connections[1].last_call_at -= QUIET_SECONDS + 1
            listener.check_connections(listener.loop.time())  # an open call is not idle, and still has to make room
            listener._searched_at -= QUIET_SECONDS
            newcomer = await RawClient.open(listener.port)
            assert (await newcomer.response(newcomer.call(b"/t.T/Sync", b"a"))).status == 0
            assert await raws[1].end() is not None

    run(test)


def test_failed_connections_are_released() -> None:
    async def test() -> None:
        async with open_listener() as listener:
            set_budget(listener, 100)
            for _ in range(5):
                raw = await RawClient.open(listener.port, b"")
                raw.abort()
            silent = await RawClient.open(listener.port, b"")
            await until(lambda: len(listener.connections) == 1)
            assert listener.budget.connections("grpc") == 1
            listener.check_connections(listener.loop.time() + PREFACE_TIMEOUT + 1)
            assert await silent.frame() is None
            await until(lambda: listener.budget.connections("grpc") == 0)

    run(test)


def test_accepting_pauses_without_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with open_listener() as listener:
            attempts = 0

            class Exhausted:
                def __init__(self, listening: object) -> None:
                    self._listening = listening

                def accept(self) -> None:
                    nonlocal attempts
                    attempts += 1
                    raise OSError(24, "Too many open files")

                def fileno(self) -> int:
                    return self._listening.fileno()  # type: ignore[attr-defined, no-any-return]

            listening = listener._listening
            listener._listening = Exhausted(listening)  # type: ignore[assignment]
            raw = await RawClient.open(listener.port)
            await until(lambda: attempts)
            for _ in range(100):
                await asyncio.sleep(0)
            assert attempts == 1
            listener._listening = listening
            assert (await raw.response(raw.call(b"/t.T/Sync", b"a"))).status == 0
            assert [line for line in listener.log.lines if "accept failed: Too many open files" in line]
            listener.log.lines.clear()

    run(test)
