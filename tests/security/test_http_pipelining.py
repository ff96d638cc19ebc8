"""Memory that HTTP clients can occupy by requests without reading the responses, and by unfinished requests.

Each attack states what memory may grow by. Without bounds, one connection made the service hold 2 GB.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import grpc
import pytest

from crestgate.protobuf import messages
from crestgate.runtime.connection_budget import MAX_HELD_BYTES
from integration.service.raw_http import RawConnection, request
from integration.service.service_process import Service
from security.bystander import Bystander, Control, memory_bytes, unharmed
from security.flooding import flood

Serve = Callable[..., Service]
Report = Callable[[str], None]
MIB = 1024 * 1024
ONE_CONNECTION = 8 * MIB
"""What memory may grow by through one connection."""
ALL_CONNECTIONS = 2 * MAX_HELD_BYTES
"""What it may grow by through all of them: what is counted, and as much again for what Python adds to it."""
CHECK = request(b"POST", b"/api/v1/check", body=b'{"key": "pipelined", "cost": 0}')
ALIVE = request(b"GET", b"/healthz")


@pytest.mark.parametrize("data", [ALIVE, CHECK], ids=["healthz", "check"])
def test_pipelined_requests_without_reading(serve: Serve, report: Report, data: bytes) -> None:
    service = serve()
    before = memory_bytes(service)
    with Bystander(service) as bystander, Control() as control:
        start = time.monotonic()
        time.sleep(0.7)
        middle = time.monotonic()
        result = flood(service, data * 10_000, 3, reads=False, max_bytes=33 * MIB)
        grown = memory_bytes(service) - before
        end = time.monotonic()
    figures = unharmed(bystander.waits(start, middle), bystander.waits(middle, end), control.waits(middle, end))
    report(f"{result.sent / MIB:.1f} MiB sent, {grown / MIB:.1f} MiB held; {figures}")
    assert grown < ONE_CONNECTION


@pytest.mark.parametrize("path", [b"/metrics", b"/docs", b"/docs/reference", b"/docs/swagger-ui-bundle.js"])
def test_unread_responses_on_many_connections(serve: Serve, report: Report, path: bytes) -> None:
    service = serve()
    before = memory_bytes(service)
    with Bystander(service) as bystander, Control() as control:
        start = time.monotonic()
        time.sleep(0.7)
        middle = time.monotonic()
        flood(service, request(b"GET", path) * 1_000, 3, connections=50, reads=False)
        grown = memory_bytes(service) - before
        end = time.monotonic()
    figures = unharmed(bystander.waits(start, middle), bystander.waits(middle, end), control.waits(middle, end))
    report(f"{path.decode()}: {grown / MIB:.1f} MiB held; {figures}")
    assert grown < ALL_CONNECTIONS


UNFINISHED = {
    "bodies": request(b"POST", b"/api/v1/quota", b"content-length: %d" % MIB) + b" " * (MIB - 1),
    "chunked bodies": request(b"POST", b"/api/v1/quota", b"transfer-encoding: chunked")
    + (b"400\r\n" + b" " * 1024 + b"\r\n") * 1000,
    "one large header": request(b"GET", b"/healthz", b"x: " + b"a" * 60_000)[:-4],
    "many small headers": request(b"GET", b"/healthz", *[b"x:"] * 15_000)[:-2],
    "a large batch behind a check": CHECK
    + request(b"POST", b"/api/v1/quota", b"content-length: 99999")
    + b" " * 90_000,
}


@pytest.mark.parametrize("data", UNFINISHED.values(), ids=UNFINISHED.keys())
def test_unfinished_requests_on_many_connections(serve: Serve, report: Report, data: bytes) -> None:
    service = serve()
    before = memory_bytes(service)
    with Bystander(service) as bystander, Control() as control:
        start = time.monotonic()
        time.sleep(0.7)
        middle = time.monotonic()
        result = flood(service, data, 4, connections=300, reads=False, repeat=False, max_bytes=400 * MIB)
        grown = memory_bytes(service) - before
        end = time.monotonic()
    figures = unharmed(bystander.waits(start, middle), bystander.waits(middle, end), control.waits(middle, end))
    report(f"{result.sent / MIB:.0f} MiB sent, {grown / MIB:.1f} MiB held; {figures}")
    assert grown < ALL_CONNECTIONS
    assert bystander.statuses(middle, end) == {200}


def test_slow_uploads_do_not_refuse_the_requests_of_others(serve: Serve) -> None:
    """The largest holder is dropped first, and gRPC has a separate memory budget."""
    service = serve()
    checks = [{"counters": [{"key": f"k{number}", "limit": "9/d"}]} for number in range(300)]
    batch = request(b"POST", b"/api/v1/check/batch", body=json.dumps({"checks": checks}).encode())
    with ExitStack() as stack:
        for size, count in ((MIB, MAX_HELD_BYTES // MIB - 1), (32_000, 60), (2_000, 60)):
            upload = request(b"POST", b"/api/v1/quota", b"content-length: %d" % size) + b" " * (size - 1)
            for _ in range(count):
                stack.enter_context(RawConnection(service)).send(upload)
            time.sleep(0.3)  # for the service to receive it
        for _ in range(3):
            connection = stack.enter_context(RawConnection(service))
            for start in range(0, len(batch), 2048):
                connection.send(batch[start : start + 2048])
                time.sleep(0.01)  # so that it arrives in pieces
            answer = connection.read_response()
            assert answer is not None
            assert answer.status == 200, answer.body
        with grpc.insecure_channel(service.rpc) as channel:
            message = messages.CheckBatchRequest()
            for number in range(1000):
                message.checks.add(key=f"a key that is somewhat longer than others: {number}")
            path = "/crestgate.v1.RateLimiter/CheckRateLimitBatch"
            ask = channel.unary_unary(
                path, messages.CheckBatchRequest.SerializeToString, messages.CheckBatchResponse.FromString
            )
            assert len(ask(message, timeout=30).decisions) == 1000


def test_large_requests_are_refused_while_others_hold_all_the_memory(serve: Serve) -> None:
    service = serve()
    unfinished = UNFINISHED["bodies"]
    with ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(service)) for _ in range(MAX_HELD_BYTES // MIB + 1)]
        for connection in connections:
            connection.send(unfinished)
        answered, _, _ = select.select([connection.socket for connection in connections], [], [], 10)
        answer = next(connection for connection in connections if connection.socket in answered).read_response()
        assert answer is not None
        assert answer.status == 503
        assert answer.json()["detail"] == "the requests under way take too much memory together: try again later"
        with RawConnection(service) as small:
            small.send(CHECK)
            answer = small.read_response()
            assert answer is not None
            assert answer.status == 200
    with RawConnection(service) as later:  # the held memory is free again
        later.send(unfinished + b" ")
        answer = later.read_response()
        assert answer is not None
        assert answer.status == 400


def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    """Of any size and split, also when the client reads nothing before it has sent all."""
    service = serve()
    pieces = []
    for number in range(3_000):
        name = b"x-request-id: n%d" % number
        match number % 4:
            case 0:
                pieces.append(request(b"GET", b"/healthz", name))
            case 1:
                pieces.append(request(b"POST", b"/api/v1/check", name, body=b'{"key": "ordered", "cost": 0}'))
            case 2:
                body = b'{"key": "ordered", "cost": 0}'
                chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
                pieces.append(request(b"POST", b"/api/v1/check", name, b"transfer-encoding: chunked") + chunks)
            case _:
                body = b'{"key": "ordered",' + b"\r\n\r\n" * (number % 50) + b'"cost": 0}'
                pieces.append(request(b"POST", b"/api/v1/quota", name, body=body))
    with RawConnection(service) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
        connection.send(b"".join(pieces))
        for number in range(len(pieces)):
            answer = connection.read_response()
            assert answer is not None
            assert answer.status == 200
            assert answer.header("x-request-id") == f"n{number}"


def test_pipelined_requests_are_answered_after_a_half_close(serve: Serve) -> None:
    service = serve()
    with RawConnection(service) as connection:
        connection.send((ALIVE + CHECK) * 200)
        connection.half_close()
        for _ in range(400):
            answer = connection.read_response()
            assert answer is not None
            assert answer.status == 200
        assert connection.closed()
