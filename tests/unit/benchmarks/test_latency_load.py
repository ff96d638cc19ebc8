"""The load that measures latency: planned times, coordinated omission, and what it understands of HTTP and gRPC."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from benchmarks.latency import histogram, load
from benchmarks.latency.load import Order
from benchmarks.latency.wire import FailedCallError, GrpcConnection, HttpConnection

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">BHBBL", 0, len(payload), kind, flags, stream) + payload


def answer(stream: int, message: bytes = b"yes") -> bytes:
    data = b"\0" + len(message).to_bytes(4, "big") + message
    return frame(1, 4, stream, b"h") + frame(0, 0, stream, data) + frame(1, 5, stream, b"t")


@pytest.fixture
def server() -> Iterator[int]:
    """Answers every request of HTTP in the order in which it comes; the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(link: socket.socket) -> None:
        with link, suppress(ConnectionError):  # the load leaves in the middle of an answer
            while data := link.recv(65_536):
                link.sendall(OK * data.count(b"POST "))

    def accept() -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(link,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def order(port: int, **more: float) -> Order:
    fields = {"seconds": 0.05, "connections": 2, "in_flight": 2, **more}
    return Order("http", port, "/check", [b"{}", b"[]"], 1, **fields)  # type: ignore[arg-type]  # whole numbers are


def test_every_planned_request_is_sent_and_timed(server: int) -> None:
    told = load.send(order(server, rate=2_000.0, seed=7))
    assert 40 <= told["sent"] <= 200
    assert told["calls"] == sum(told["histogram"].values()) <= told["sent"]


def test_same_seed_plans_the_same_requests(server: int) -> None:
    first, second = (load.send(order(server, rate=1_000.0, seed=3))["sent"] for _ in range(2))
    assert first == second


def test_without_a_rate_requests_are_always_under_way(server: int) -> None:
    told = load.send(order(server))
    assert told["calls"] > 0
    assert told["late_p99"] == 0


def test_latency_counts_from_the_planned_time() -> None:
    """Three requests planned for the same moment on one connection: the last has waited for the others."""
    connection = HttpConnection("/")
    for _ in range(3):
        assert connection.room() == 1
        connection.request(b"{}", 0.25)
        assert connection.room() == 0
        assert connection.receive(OK) == ([0.25], b"")


def test_response_in_pieces_is_put_together() -> None:
    connection = HttpConnection("/")
    connection.request(b"{}", 1.5)
    for byte in OK[:-1]:
        assert connection.receive(bytes([byte])) == ([], b"")
    assert connection.receive(OK[-1:]) == ([1.5], b"")
    assert connection.body == b"{}"


def test_refusal_over_http_is_an_error() -> None:
    connection = HttpConnection("/")
    connection.request(b"{}", 0.0)
    with pytest.raises(FailedCallError, match="429"):
        connection.receive(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n")


def test_grpc_calls_are_told_apart_and_settings_are_followed() -> None:
    connection = GrpcConnection("/a/B", 8)
    assert connection.opening().startswith(b"PRI * HTTP/2.0")
    sent = [connection.request(b"body", planned) for planned in (1.0, 2.0)]
    assert b"/a/B" in sent[0]
    assert sent[0] != sent[1]
    settings = frame(4, 0, 0, struct.pack(">HL", 3, 2))
    answered, reply = connection.receive(settings + answer(3) + frame(6, 0, 0, b"12345678") + answer(1)[:-3])
    assert answered == [2.0]
    assert reply == frame(4, 1, 0) + frame(6, 1, 0, b"12345678")
    assert connection.room() == 1
    assert connection.receive(answer(1)[-3:]) == ([1.0], b"")
    assert connection.messages[-1] == b"yes"
    assert connection.room() == 2


def test_grpc_call_without_a_message_is_an_error() -> None:
    connection = GrpcConnection("/a/B", 8)
    connection.request(b"body", 0.0)
    with pytest.raises(FailedCallError, match="refused"):
        connection.receive(frame(1, 5, 1, b"status"))


def test_grpc_window_that_is_used_up_leaves_no_room() -> None:
    connection = GrpcConnection("/a/B", 1_000)
    connection.request(b"x" * 65_000, 0.0)
    assert connection.room() == 0
    connection.receive(frame(8, 0, 0, (65_000).to_bytes(4, "big")))
    assert connection.room() == 999


def test_percentiles_of_several_turns_are_of_all_their_requests() -> None:
    turns = [histogram.bucket_counts([100.0] * 98), histogram.bucket_counts([5_000.0, 0.5])]
    together = histogram.summed(turns)
    assert sum(together.values()) == 100
    assert histogram.percentile(together, 0.5) == pytest.approx(100, rel=0.01)
    assert histogram.percentile(together, 0.999) == pytest.approx(5_000, rel=0.01)
