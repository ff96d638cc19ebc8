"""Connections that are opened and left alone, plain and in the middle of a TLS handshake, must not shut others out."""

from __future__ import annotations

import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from headgate.service.connections import max_connections
from integration.service.serving import Service
from integration.service.wire import request
from security.bystander import Bystander, memory_bytes, unharmed
from servers.redis import self_signed

FILES = 256
CONNECTIONS = 300
MIB = 1024 * 1024
MAX_GROWTH = 64 * MIB


@pytest.fixture
def limited(serve: Callable[..., Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Service]:
    """Starts services that may have few files open, and so few connections."""
    program = tmp_path / "limited"
    program.write_text(f'#!/bin/sh\nulimit -n {FILES}\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)

    def start(**options: object) -> Service:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(program))
            return serve(**options)

    return start


@pytest.fixture
def crowd() -> Iterator[Callable[[Service, bytes], None]]:
    """Opens many connections, each of which sends the same, and keeps them open."""
    with ExitStack() as stack:

        def open_all(service: Service, data: bytes) -> None:
            for _ in range(CONNECTIONS):
                one = stack.enter_context(socket.socket())
                one.settimeout(30)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what is not read is soon not sent
                try:
                    one.connect((service.host, service.port))
                    one.sendall(data)
                except ConnectionError:
                    continue  # it was refused

        yield open_all


@pytest.mark.parametrize(
    "data",
    [
        b"",
        request(b"GET", b"/healthz"),
        request(b"GET", b"/healthz")[:-2],
        request(b"GET", b"/openapi.json") * 200,
    ],
    ids=["nothing", "one request each", "half a request", "answers that are not read"],
)
def test_idle_connections_make_room(
    limited: Callable[..., Service],
    crowd: Callable[[Service, bytes], None],
    report: Callable[[str], None],
    data: bytes,
) -> None:
    service = limited()
    with Bystander(service, fresh=True) as bystander, Bystander(service) as steady:
        start = time.monotonic()
        time.sleep(0.7)
        middle = time.monotonic()
        crowd(service, data)
        time.sleep(1.2)  # connections that are older than that make room
        service.await_ready(20)  # a busy service needs a while to find out that nobody reads
        late = time.monotonic()
        time.sleep(1.0)
        end = time.monotonic()
    assert max_connections(FILES) < CONNECTIONS
    assert bystander.statuses(late, end) == {200}
    assert steady.statuses(middle, end) == {200}, "a connection in use does not make room"
    figures = unharmed(bystander.waits(start, middle), bystander.waits(late, end))
    report(f"{CONNECTIONS} connections, room for {max_connections(FILES) * 3 // 4}; {figures}")


def test_tls_handshakes_make_room(
    limited: Callable[..., Service],
    crowd: Callable[[Service, bytes], None],
    report: Callable[[str], None],
    tmp_path: Path,
) -> None:
    certificate = self_signed(tmp_path)
    tls = f"server: {{tls: {{certificate: {certificate}, key: {certificate.with_suffix('.key')}}}}}\n"
    service = limited(config=tls)
    context = ssl.create_default_context(cafile=str(certificate))
    before = memory_bytes(service)
    crowd(service, b"")
    time.sleep(1.2)  # as above
    for _ in range(20):
        with httpx.Client(base_url=service.url, verify=context, timeout=30) as fresh:
            assert fresh.get("/healthz").status_code == 200
    grown = memory_bytes(service) - before
    report(f"{CONNECTIONS} TLS handshakes that do not go on: {grown / MIB:.1f} MiB held")
    assert grown < MAX_GROWTH
