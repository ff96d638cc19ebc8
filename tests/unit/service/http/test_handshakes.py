"""TLS handshakes: counted from the start, limited in time, and evicted when there is no room."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from crestgate.runtime.connection_budget import ConnectionBudget
from crestgate.service.http import admission, handshakes
from crestgate.service.http.admission import ConnectionAdmission
from crestgate.service.http.handshakes import TlsListener
from crestgate.service.http.protocol import HttpConnection
from servers.redis import self_signed

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


class ListenerHarness:
    """A listener in this process."""

    def __init__(self, port: int, room: ConnectionAdmission, trust: ssl.SSLContext) -> None:
        self.port = port
        self.admission = room
        self.trust = trust

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def request(self) -> bytes:
        """The response over TLS."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trust)
        writer.write(REQUEST)
        response = await reader.read()
        writer.close()
        return response

    async def wait_for_open(self, count: int) -> None:
        """Wait until `count` connections are counted."""
        async with asyncio.timeout(30):
            while len(self.admission.open) != count or self.admission.budget.connections("http") != count:
                await asyncio.sleep(0.001)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("tls"))


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"fine"})


def run(certificate: Path, room: int, test: Callable[[ListenerHarness], Awaitable[None]]) -> None:
    async def whole() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        admission = ConnectionAdmission(ConnectionBudget(room))
        config = uvicorn.Config(app, lifespan="off", interface="asgi3", log_config=None, proxy_headers=False, ws="none")
        config.load()
        state = ServerState()

        def create() -> HttpConnection:
            return HttpConnection(config, state, {}, admission=admission)

        listening = socket.create_server(("127.0.0.1", 0))
        listener = TlsListener(listening, create, lambda: context, admission)
        trust = ssl.create_default_context(cafile=str(certificate))
        async with asyncio.timeout(60):
            await test(ListenerHarness(listening.getsockname()[1], admission, trust))
        listener.close()
        listening.close()

    for start in (asyncio.run, uvloop.run):
        start(whole())


def test_connections_are_counted_until_they_end(certificate: Path) -> None:
    async def test(harness: ListenerHarness) -> None:
        for _ in range(3):
            assert (await harness.request()).endswith(b"fine")
            await harness.wait_for_open(0)

    run(certificate, 100, test)


def test_unfinished_handshake_is_closed(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "MAX_HANDSHAKE_SECONDS", 0.05)

    async def test(harness: ListenerHarness) -> None:
        reader, writer = await harness.connect()
        await harness.wait_for_open(0)
        try:
            assert await reader.read() == b""
        except ConnectionError:
            pass
        writer.close()

    run(certificate, 100, test)
    monkeypatch.undo()
    assert handshakes.MAX_HANDSHAKE_SECONDS == 10


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00garbage" * 100, None])
def test_failed_handshake_is_released(certificate: Path, data: bytes | None) -> None:
    async def test(harness: ListenerHarness) -> None:
        _, writer = await harness.connect()
        await harness.wait_for_open(1)
        if data is not None:
            writer.write(data)
            await harness.wait_for_open(0)
        writer.close()
        await harness.wait_for_open(0)
        assert (await harness.request()).endswith(b"fine")

    run(certificate, 100, test)


def test_idle_handshakes_are_evicted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "SCAN_INTERVAL", 0.0)

    async def test(harness: ListenerHarness) -> None:
        streams = [await harness.connect() for _ in range(3)]
        await harness.wait_for_open(3)
        # no room, and no connection has been idle for long
        for _, writer in [await harness.connect() for _ in range(3)]:
            writer.close()
        monkeypatch.setattr(admission, "MIN_IDLE", 0.0)
        assert (await harness.request()).endswith(b"fine")
        await harness.wait_for_open(2)
        monkeypatch.setattr(admission, "MIN_IDLE", 1000.0)
        for _, writer in streams:
            writer.close()
        await harness.wait_for_open(0)

    monkeypatch.setattr(admission, "MIN_IDLE", 1000.0)
    run(certificate, 4, test)
