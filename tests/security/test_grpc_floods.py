"""One flooding gRPC connection, with any frames, must not delay others.

The bystanders call over HTTP and over gRPC while a connection floods the only worker of a service.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from crestgate.service.grpc.transport import frames
from integration.service.service_process import Service
from security.bystander import Bystander, Control, memory_bytes, unharmed
from security.rpc_attack import FloodKind, RpcBystander, connect, flood, floods, goaway_code

FLOODS = floods()
QUIET_SECONDS = 0.6
FLOOD_SECONDS = 1.0
MAX_GROWTH = 64 * 1024 * 1024
USELESS_FRAMES = (
    *("priority", "empty_data", "padding", "data_of_a_refused_call", "unknown", "ping", "ping_acks", "settings"),
    *("settings_acks", "window_updates", "goaway", "continuation", "resets_of_unfinished_calls", "malformed_calls"),
    *("hpack_resizes",),
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    environment = {"CRESTGATE_SERVER__LIMITS__CHECKS": "1000000000/second"}
    with Service(tmp_path_factory.mktemp("flooded"), "plans: {default: 1000000000/second}\n", environment) as started:
        yield started


@pytest.mark.parametrize("name", FLOODS)
def test_one_flooding_connection_does_not_starve_others(
    service: Service, name: str, report: Callable[[str], None]
) -> None:
    memory = memory_bytes(service)
    assert_not_starved(service, FLOODS[name], 1, report)
    assert memory_bytes(service) - memory < MAX_GROWTH


def test_many_connections_of_valid_calls_share_with_others(service: Service, report: Callable[[str], None]) -> None:
    assert_not_starved(service, FLOODS["valid_calls"], 10, report)


def assert_not_starved(service: Service, kind: FloodKind, connections: int, report: Callable[[str], None]) -> None:
    """Assert that others are served during a flood."""
    service.await_ready()  # until an earlier flood has been handled
    with Bystander(service) as http, RpcBystander(service) as rpc, Control() as control:
        start = time.monotonic()
        time.sleep(QUIET_SECONDS)  # real requests in real time: there is no other clock to drive
        middle = time.monotonic()
        sent, hung_up = flood(service, kind, FLOOD_SECONDS, connections)
        end = time.monotonic()
    for bystander, protocol in ((http, "HTTP"), (rpc, "gRPC")):
        assert bystander.statuses(start, end) == {200}
        waits = bystander.waits(start, middle), bystander.waits(middle, end), control.waits(middle, end)
        report(f"{protocol}: {unharmed(*waits)}; {sent:,} bytes sent, hung up on {hung_up} times")


@pytest.mark.parametrize("name", USELESS_FRAMES)
def test_useless_frames_end_the_connection(service: Service, name: str) -> None:
    kind = FLOODS[name]
    connection = connect(service, kind.first)
    sent, view = 0, memoryview(kind.rest * 8)[:2_000_000]
    try:
        while sent < len(view):
            sent += connection.send(view[sent : sent + 16_384])
    except (BrokenPipeError, ConnectionResetError):
        pass
    expected = {frames.ENHANCE_YOUR_CALM, None}  # a reset may overtake the GOAWAY
    if kind.once:
        # The numbers of the calls start over, and the count of useless frames does so every second: a service that
        # gets no processor in between reads the former first.
        expected.add(frames.STREAM_CLOSED)
    assert goaway_code(connection) in expected
    connection.close()
