"""One flooding HTTP client must not delay the others."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from integration.service.raw_http import request
from integration.service.service_process import GENEROUS, Service
from security.bystander import Bystander, Control, unharmed
from security.flooding import flood

MIB = 1024 * 1024
CHECK = request(b"POST", b"/api/v1/check", body=b'{"key": "fair", "cost": 0}')
SHORT_CHECK = b"POST /api/v1/check HTTP/1.1\r\nhost:localhost\r\ncontent-length:11\r\n\r\n" + b'{"key":"k"}'
CHUNKS = b"1\r\n \r\n" * 100_000
FLOODS = {
    "pipelined checks": CHECK * 5_000,
    "pipelined short checks": SHORT_CHECK * 5_000,
    "pipelined health checks": request(b"GET", b"/healthz") * 5_000,
    "pipelined admin calls without a key": request(b"GET", b"/api/v1/rules") * 5_000,
    "pipelined requests with errors": request(b"POST", b"/api/v1/check", body=b"{") * 5_000,
    "empty lines": b"\r\n\r\n" * 250_000,
}


@pytest.mark.parametrize(
    ("kind", "connections"), [("pipelined checks", 1), ("empty lines", 1), *((kind, 8) for kind in FLOODS)]
)
def test_floods_of_requests(
    serve: Callable[..., Service], report: Callable[[str], None], kind: str, connections: int
) -> None:
    service = serve(environment=GENEROUS)
    with Bystander(service) as bystander, Control() as control:
        start = time.monotonic()
        time.sleep(0.7)
        middle = time.monotonic()
        result = flood(service, FLOODS[kind], 2, connections=connections, start=request(b"GET", b"/healthz"))
        end = time.monotonic()
    figures = unharmed(bystander.waits(start, middle), bystander.waits(middle, end), control.waits(middle, end))
    report(f"{result.sent / MIB:.1f} MiB sent, {result.answers} answers; {figures}")
    assert bystander.statuses(start, end) == {200}


@pytest.mark.parametrize(("path", "connections"), [(b"/api/v1/rules", 1), (b"/api/v1/rules", 8), (b"/api/v1/check", 8)])
def test_floods_of_small_chunks(
    serve: Callable[..., Service], report: Callable[[str], None], path: bytes, connections: int
) -> None:
    service = serve(environment=GENEROUS)
    key = b"authorization: Bearer " + service.key.encode()
    head = request(b"POST", path, key, b"transfer-encoding: chunked")
    with Bystander(service) as bystander, Control() as control:
        start = time.monotonic()
        time.sleep(0.7)
        middle = time.monotonic()
        result = flood(service, CHUNKS, 2, connections=connections, start=head)
        end = time.monotonic()
    figures = unharmed(bystander.waits(start, middle), bystander.waits(middle, end), control.waits(middle, end))
    report(f"{result.sent / MIB:.1f} MiB sent; {figures}")
    assert bystander.statuses(start, end) == {200}
