"""Random sequences of events with h2 as the peer, which checks that its windows are respected."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crestgate.service.grpc.transport.connection import Http2Connection
from unit.service.grpc.transport.listener_harness import Handlers, ListenerHarness, run, unreleased
from unit.service.grpc.transport.raw_client import message

TURNS = 300
"""Loop turns within which every call must be answered once the windows are open."""
LARGE_WINDOW = 2**20


class Wire:
    """A transport without a socket: the test controls when bytes are delivered."""

    def __init__(self, connection: Http2Connection) -> None:
        self.connection = connection
        self.sent = bytearray()
        self.closed = False
        connection.connection_made(self)

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> None:
        return None

    def pause_reading(self) -> None:
        """Data delivered meanwhile is queued by the connection."""

    def resume_reading(self) -> None:
        pass


class Peer:
    """h2 at the other end of a wire; `responses` are those of the calls that were not reset."""

    def __init__(self) -> None:
        self.listener = ListenerHarness(Handlers())
        self.wire = Wire(self.listener._create_connection())
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.h2.initiate_connection()
        self.unsent: dict[int, tuple[bytes, int]] = {}
        self.expected: dict[int, bytes] = {}
        self.responses: dict[int, tuple[bytes, bytes]] = {}
        self.open: list[int] = []
        self._unacknowledged = 1
        self._undelivered = bytearray()
        self._received: dict[int, bytes] = {}

    def call(self, method: str, texts: list[bytes], padding: int) -> None:
        number = self.h2.get_next_available_stream_id()
        fields = [(":method", "POST"), (":scheme", "http"), (":path", f"/t.T/{method}"), (":authority", "here")]
        self.h2.send_headers(number, [*fields, ("content-type", "application/grpc"), ("te", "trailers")])
        self.unsent[number] = b"".join(map(message, texts)), padding
        self.expected[number] = b"".join(map(message, expected(method, texts)))
        self._received[number] = b""
        self.open.append(number)

    def reset_call(self, at: int) -> None:
        if self.open:
            number = self.open.pop(at % len(self.open))
            self.unsent.pop(number, None)
            self.h2.reset_stream(number, 8)

    def increase_window(self, at: int, size: int) -> None:
        if self.open and self.h2.remote_flow_control_window(self.open[at % len(self.open)]) + size < 2**31:
            self.h2.increment_flow_control_window(size, self.open[at % len(self.open)])

    def increase_connection_window(self, size: int) -> None:
        self.h2.increment_flow_control_window(size)

    def set_window(self, size: int) -> None:
        """h2 takes one acknowledgement as that of all pending settings, so only one change is sent at a time."""
        if self._unacknowledged:
            return
        self._unacknowledged += 1
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: size})

    def deliver(self, size: int) -> None:
        """Deliver up to `size` bytes to the listener, and its output back to h2."""
        self._write_bodies()
        self._undelivered += self.h2.data_to_send()
        if self._undelivered:
            self.wire.connection.data_received(bytes(self._undelivered[:size]))
            del self._undelivered[:size]
        self._receive()

    async def turn(self) -> None:
        await asyncio.sleep(0)
        self._receive()

    async def settle(self) -> None:
        """Open all windows and deliver everything until all calls are answered."""
        for _ in range(TURNS):
            for at in range(len(self.open)):
                self.increase_window(at, LARGE_WINDOW)
            self.increase_connection_window(LARGE_WINDOW)
            self.deliver(10**9)
            await self.turn()
            # Input that the connection has not processed yet, because it takes turns with others, is still held.
            if not self.open and not self._undelivered and not any(unreleased(self.wire.connection).values()):
                return
        raise AssertionError(f"no answer to {self.open}, and left behind: {unreleased(self.wire.connection)}")

    def _write_bodies(self) -> None:
        for number, (data, padding) in list(self.unsent.items()):
            while True:
                extra = padding + 1 if padding else 0
                fits = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size) - extra
                if fits < min(len(data), 1):
                    self.unsent[number] = data, padding
                    break
                piece, data = data[:fits], data[fits:]
                self.h2.send_data(number, piece, end_stream=not data, pad_length=padding or None)
                if not data:
                    del self.unsent[number]
                    break

    def _receive(self) -> None:
        sent = bytes(self.wire.sent)
        self.wire.sent.clear()
        for event in self.h2.receive_data(sent):
            self._event(event)

    def _event(self, event: Event) -> None:
        assert not isinstance(event, ConnectionTerminated), event
        if isinstance(event, SettingsAcknowledged):
            self._unacknowledged -= 1
        number: int = getattr(event, "stream_id", None) or 0
        if number not in self.open:
            return
        if isinstance(event, DataReceived):
            self._received[number] += event.data
        elif isinstance(event, TrailersReceived):
            self.responses[number] = dict(event.headers)[b"grpc-status"], self._received[number]
        elif isinstance(event, StreamEnded | StreamReset):
            assert number in self.responses, event
            self.open.remove(number)
            self.unsent.pop(number, None)


def expected(method: str, texts: list[bytes]) -> list[bytes]:
    if method == "Large":
        return [Handlers.large(None, None, text) for text in texts]  # type: ignore[arg-type]
    return texts[:1] if method == "First" else texts


text = st.builds(lambda n, size: b"%d." % n * size, st.integers(0, 10**6), st.integers(0, 5000))
one = st.lists(text, min_size=1, max_size=1)
methods = st.one_of(
    st.tuples(st.sampled_from(["Sync", "Async"]), one),
    st.tuples(st.just("Large"), st.integers(0, 200_000).map(lambda size: [b"%d" % size])),
    st.tuples(st.sampled_from(["Stream", "First"]), st.lists(text, min_size=1, max_size=8)),
)
padding = st.sampled_from([0, 0, 0, 1, 255])
calling = st.builds(lambda method, padding: ("call", *method, padding), methods, padding)
sizes = st.one_of(st.integers(1, 40), st.integers(1, 100_000))
actions = st.one_of(
    calling,
    calling,
    st.tuples(st.just("reset_call"), st.integers(0, 20)),
    st.tuples(st.just("increase_window"), st.integers(0, 20), sizes),
    st.tuples(st.just("increase_connection_window"), sizes),
    st.tuples(st.just("set_window"), st.one_of(st.just(0), st.integers(0, 200_000))),
    st.tuples(st.just("deliver"), sizes),
    st.tuples(st.just("deliver"), st.just(10**9)),
    st.tuples(st.just("turn")),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(actions, min_size=5, max_size=60))
def test_every_call_gets_its_response_in_any_order_of_events(plan: list[tuple[Any, ...]]) -> None:
    async def test() -> None:
        peer = Peer()
        peer.deliver(10**9)
        for name, *arguments in plan:
            done = getattr(peer, name)(*arguments)
            if done is not None:
                await done
        await peer.settle()
        assert set(peer.responses) <= set(peer.expected)
        for number, answer in peer.responses.items():
            assert answer == (b"0", peer.expected[number])
        resets = sum([1 for name, *_ in plan if name == "reset_call"])
        assert len(peer.responses) >= len(peer.expected) - resets
        assert not any(unreleased(peer.wire.connection).values()), unreleased(peer.wire.connection)
        await assert_no_tasks()

    run(test)


async def assert_no_tasks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) <= 2  # the test, and the task that waits for it


def valid_session() -> bytes:
    """The bytes that a valid client sends for several calls."""
    peer = Peer()
    for method in ("Sync", "Large", "Stream", "Waits", "First", "Async"):
        peer.call(method, [b"12345"], 0)
    peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 70})
    peer.increase_connection_window(100)
    peer.reset_call(3)
    peer._write_bodies()
    return peer.h2.data_to_send()


change: st.SearchStrategy[Callable[[bytes], bytes]] = st.one_of(
    st.builds(
        lambda at, byte: lambda data: data[:at] + bytes([byte]) + data[at + 1 :],
        st.integers(24, 500),
        st.integers(0, 255),
    ),
    st.builds(lambda at, size: lambda data: data[:at] + data[at + size :], st.integers(24, 500), st.integers(1, 20)),
    st.builds(lambda at, more: lambda data: data[:at] + more + data[at:], st.integers(24, 500), st.binary(max_size=30)),
    st.builds(lambda at, size: lambda data: data + data[at : at + size], st.integers(24, 500), st.integers(1, 200)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(change, max_size=5), st.integers(1, 600))
def test_mutated_input_causes_no_unhandled_error(changes: list[Callable[[bytes], bytes]], split: int) -> None:
    async def test() -> None:
        wire = Wire(ListenerHarness(Handlers())._create_connection())
        data = valid_session()
        for changed in changes:
            data = changed(data)
        for at in range(0, len(data), split):
            wire.connection.data_received(data[at : at + split])
            if at % 5 == 0:
                await asyncio.sleep(0)
        wire.connection.connection_lost(None)
        assert not any(unreleased(wire.connection).values()), unreleased(wire.connection)
        await assert_no_tasks()

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("crestgate.grpc").addHandler(handler)
    try:
        run(test)
    finally:
        logging.getLogger("crestgate.grpc").removeHandler(handler)
    # Large needs a number; its error on other input is not a fault of the listener.
    assert [line for line in lines if line != "unhandled error in gRPC call"] == []


@pytest.mark.parametrize("split", [1, 2, 3, 7, 8, 9, 10, 23, 24, 25, 33])
def test_output_is_independent_of_read_boundaries(split: int) -> None:
    async def test() -> None:
        outputs = []
        for size in (split, 10**9):
            wire = Wire(ListenerHarness(Handlers())._create_connection())
            data = valid_session()
            for at in range(0, len(data), size):
                wire.connection.data_received(data[at : at + size])
            wire.connection.connection_lost(None)
            outputs.append(bytes(wire.sent))
        assert outputs[0] == outputs[1]
        assert len(outputs[0]) > 200

    run(test)
