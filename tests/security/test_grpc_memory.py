"""The memory that many gRPC connections occupy in a worker is bounded, and small calls are answered meanwhile."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.frames import frame
from crestgate.service.grpc.transport.headers import encode_headers
from integration.service.service_process import Service
from security.bystander import Bystander, Control, memory_bytes, peak_memory_bytes, unharmed
from security.rpc_attack import CHECK, HELLO, RpcBystander, connect, head

CONNECTIONS = 20
STREAMS = 40
MAX_GROWTH = 128 * 1024 * 1024
"""The 64 MiB that connections may hold, what Python needs to keep them, and what its allocator does not return."""
QUIET_SECONDS = 0.6


def unfinished_messages() -> bytes:
    """Messages of 1 MiB whose last bytes are never sent."""
    prefix = (1024 * 1024).to_bytes(5, "big") + bytes(16_379)
    parts = []
    for number in range(1, 2 * STREAMS, 2):
        parts.append(frame(frames.HEADERS, frames.END_HEADERS, number, CHECK))
        parts.append(frame(frames.DATA, 0, number, prefix))
        parts += [frame(frames.DATA, 0, number, bytes(16_384))] * 62
    return b"".join(parts)


def large_headers() -> bytes:
    """Calls without a message, with as many headers as fit."""
    parts = []
    for number in range(1, 2 * 300, 2):
        many = encode_headers([(b"n%d-%d" % (number, at), b"x") for at in range(330)])
        parts.append(frame(frames.HEADERS, frames.END_HEADERS, number, CHECK + many))
    return b"".join(parts)


def unread_responses() -> bytes:
    """Responses of reflection and health that are never read, with the largest flow-control window."""
    opened = frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31 - 1})
    path = head(b"/grpc.health.v1.Health/List")
    calls = [
        frame(frames.HEADERS, frames.END_HEADERS, number, path)
        + frame(frames.DATA, frames.END_STREAM, number, bytes(5))
        for number in range(1, 40_000, 2)
    ]
    return opened + b"".join(calls)


ATTACKS = {
    "unfinished messages": unfinished_messages,
    "large headers": large_headers,
    "unread responses": unread_responses,
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_memory_of_all_connections_is_bounded(
    serve: Callable[..., Service], report: Callable[[str], None], attack: Callable[[], bytes]
) -> None:
    service = serve()
    data = attack()
    before = memory_bytes(service)
    with ExitStack() as stack, Bystander(service) as http, RpcBystander(service) as rpc, Control() as control:
        start = time.monotonic()
        time.sleep(QUIET_SECONDS)  # real requests in real time: there is no other clock to drive
        middle = time.monotonic()
        sent = 0
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(connect(service, HELLO))
            sent += _send(connection, data, seconds=0.25)
        time.sleep(1.0)  # for the service to handle what it has
        end = time.monotonic()
    growth = peak_memory_bytes(service) - before
    for bystander, protocol in ((http, "HTTP"), (rpc, "gRPC")):
        assert bystander.statuses(start, end) == {200}
        waits = bystander.waits(start, middle), bystander.waits(middle, end), control.waits(middle, end)
        report(f"{protocol}: {unharmed(*waits)}")
    report(f"{sent:,} bytes sent, {growth:,} held at most")
    assert growth < MAX_GROWTH


CONFIG = "envoy: {config: descriptors.yaml}\n"
DESCRIPTORS = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 9}}]\n"
CALLS = 20
REFUSED_GROWTH = 96 * 1024 * 1024
"""Some messages of 1 MiB on their way, and what the allocator does not return. One of them took 60 MiB when decoded."""
EMPTY = 1024 * 1024 // 2 - 64
"""Empty sub-messages of two bytes each."""
ENVOY = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
REFUSED = {
    "checks": ("/crestgate.v1.RateLimiter/CheckRateLimitBatch", b"\x0a\x00" * EMPTY),
    "descriptors": (ENVOY, b"\x0a\x04shop" + b"\x12\x00" * EMPTY),
    "entries": (ENVOY, b"\x0a\x04shop\x12\x80\xff\x3f" + b"\x0a\x00" * EMPTY),
}


@pytest.mark.parametrize(("path", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_messages_are_not_held(
    serve: Callable[..., Service], report: Callable[[str], None], tmp_path: Path, path: str, message: bytes
) -> None:
    (tmp_path / "descriptors.yaml").write_text(DESCRIPTORS)
    service = serve(config=CONFIG)
    before = memory_bytes(service)
    with grpc.insecure_channel(service.rpc) as channel, Bystander(service) as http, Control() as control:
        call = channel.unary_unary(path)
        start = time.monotonic()
        time.sleep(QUIET_SECONDS)  # as above
        middle = time.monotonic()
        for _ in range(CALLS):
            with pytest.raises(grpc.RpcError) as caught:
                call(message, timeout=30)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        end = time.monotonic()
    growth = peak_memory_bytes(service) - before
    assert http.statuses(start, end) == {200}
    report(unharmed(http.waits(start, middle), http.waits(middle, end), control.waits(middle, end)))
    report(f"{CALLS} messages of 1 MiB refused, {growth:,} held at most")
    assert growth < REFUSED_GROWTH


def _send(connection: socket.socket, data: bytes, seconds: float) -> int:
    """Send as much as the service accepts in that time."""
    end = time.monotonic() + seconds
    connection.settimeout(seconds)
    sent, view = 0, memoryview(data)
    try:
        while sent < len(data) and time.monotonic() < end:
            sent += connection.send(view[sent : sent + 262_144])
    except (TimeoutError, BrokenPipeError, ConnectionResetError):
        pass
    return sent
