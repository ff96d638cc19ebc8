"""Idle connections, plain and in the middle of a TLS handshake, must not lock out others."""

from __future__ import annotations

import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPSConnection
from pathlib import Path

import httpx
import pytest

from crestgate.runtime.connection_budget import max_connections
from crestgate.service.http.admission import MIN_IDLE_SERVED
from integration.service.raw_http import request
from integration.service.service_process import Service
from security.bystander import Bystander, Control, memory_bytes, unharmed
from servers.machine import until
from servers.redis import self_signed

FILES = 256
CONNECTIONS = 300
MIB = 1024 * 1024
MAX_GROWTH = 64 * MIB


class SteadyClient:
    """One connection with occasional requests: it is closed only if it was idle for MIN_IDLE_SERVED seconds.

    Between requests it is idle for less than that, unless the machine is busy.
    """

    def __init__(self, service: Service, context: ssl.SSLContext) -> None:
        self._connection = HTTPSConnection(service.host, service.port, timeout=30, context=context)
        self._sent = 0.0
        self.request()

    def request(self) -> None:
        before, self._sent = self._sent, time.monotonic()
        try:
            self._get()
        except OSError:  # RemoteDisconnected is one, too
            idle = time.monotonic() - before
            assert idle >= MIN_IDLE_SERVED, f"a connection in use was closed, {idle:.3f} s after the request before"
            self._connection.close()
            until("the steady client has connected again", self._reconnected)

    def _reconnected(self) -> bool:
        self._sent = time.monotonic()
        try:
            self._get()
        except OSError:
            self._connection.close()
            return False
        return True

    def _get(self) -> None:
        self._connection.request("GET", "/healthz")
        response = self._connection.getresponse()
        assert response.status == 200
        response.read()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def limited(serve: Callable[..., Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Service]:
    """Starts services with a low limit on open files, and so on connections."""
    program = tmp_path / "limited"
    program.write_text(f'#!/bin/sh\nulimit -n {FILES}\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)

    def start(**options: object) -> Service:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(program))
            return serve(**options)

    return start


@pytest.fixture
def crowd() -> Iterator[Callable[..., None]]:
    """Opens many connections that send the same data, and keeps them open; calls `between` regularly."""
    with ExitStack() as stack:

        def open_all(service: Service, data: bytes, between: Callable[[], None] = lambda: None) -> None:
            for number in range(CONNECTIONS):
                if number % 10 == 0:
                    between()
                one = stack.enter_context(socket.socket())
                one.settimeout(30)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # unread data soon blocks sending
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
    crowd: Callable[..., None],
    report: Callable[[str], None],
    data: bytes,
) -> None:
    service = limited()
    with Bystander(service, fresh=True) as bystander, Bystander(service) as steady, Control() as control:
        start = time.monotonic()
        time.sleep(0.7)
        middle = time.monotonic()
        crowd(service, data)
        time.sleep(1.2)  # connections that are older than that make room
        service.await_ready(20)  # a busy service needs a while to detect unread responses
        late = time.monotonic()
        time.sleep(1.0)
        end = time.monotonic()
    assert max_connections(FILES) < CONNECTIONS
    assert bystander.statuses(late, end) == {200}
    assert steady.statuses(middle, end) == {200}, "a connection in use does not make room"
    figures = unharmed(bystander.waits(start, middle), bystander.waits(late, end), control.waits(late, end))
    report(f"{CONNECTIONS} connections, room for {max_connections(FILES) * 3 // 4}; {figures}")


def test_tls_handshakes_make_room(
    limited: Callable[..., Service],
    crowd: Callable[..., None],
    report: Callable[[str], None],
    tmp_path: Path,
) -> None:
    certificate = self_signed(tmp_path)
    tls = f"server: {{tls: {{certificate: {certificate}, key: {certificate.with_suffix('.key')}}}}}\n"
    service = limited(config=tls)
    context = ssl.create_default_context(cafile=str(certificate))
    before = memory_bytes(service)
    with closing(SteadyClient(service, context)) as steady:
        crowd(service, b"", steady.request)
        for _ in range(12):  # the crowd is to be idle for longer than a second
            time.sleep(0.1)
            steady.request()
        for _ in range(20):
            with httpx.Client(base_url=service.url, verify=context, timeout=30) as fresh:
                assert fresh.get("/healthz").status_code == 200
            steady.request()
    grown = memory_bytes(service) - before
    report(f"{CONNECTIONS} TLS handshakes that do not go on: {grown / MIB:.1f} MiB held")
    assert grown < MAX_GROWTH
