"""Closing connections with the maximum of health watches at the same time does not delay other callers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.frames import frame
from integration.service.service_process import Service
from security.bystander import Bystander, Control, memory_bytes, peak_memory_bytes, unharmed
from security.rpc_attack import HELLO, RpcBystander, connect, head

CONNECTIONS = 20
STREAMS = 1000
MAX_GROWTH = 64 * 1024 * 1024
QUIET_SECONDS = 0.6
WATCH = head(b"/grpc.health.v1.Health/Watch")
REFLECT = head(b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")


def calls(headers: bytes) -> bytes:
    flags = frames.END_HEADERS
    return b"".join(
        [
            frame(frames.HEADERS, flags, number, headers) + frame(frames.DATA, 0, number, bytes(5))
            for number in range(1, 2 * STREAMS, 2)
        ]
    )


@pytest.mark.parametrize("headers", [WATCH, REFLECT], ids=["watches", "reflection"])
def test_closing_many_streaming_calls_does_not_delay_others(
    serve: Callable[..., Service], report: Callable[[str], None], headers: bytes
) -> None:
    service = serve()
    before = memory_bytes(service)
    data = HELLO + calls(headers)
    with Bystander(service) as http, RpcBystander(service) as rpc, Control() as control:
        start = time.monotonic()
        time.sleep(QUIET_SECONDS)  # real requests in real time: there is no other clock to drive
        middle = time.monotonic()
        connections = [connect(service, data) for _ in range(CONNECTIONS)]
        time.sleep(1.5)  # for the service to handle what it has
        closed = time.monotonic()
        for connection in reversed(connections):
            connection.close()
        time.sleep(1.0)
        end = time.monotonic()
    growth = peak_memory_bytes(service) - before
    for bystander, protocol in ((http, "HTTP"), (rpc, "gRPC")):
        assert bystander.statuses(start, end) == {200}
        quiet = bystander.waits(start, middle)
        report(f"{protocol}, opened: {unharmed(quiet, bystander.waits(middle, closed), control.waits(middle, closed))}")
        report(f"{protocol}, closed: {unharmed(quiet, bystander.waits(closed, end), control.waits(closed, end))}")
    report(f"{growth:,} bytes held at most")
    assert growth < MAX_GROWTH
