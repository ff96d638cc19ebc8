"""TLS handshakes: counted from the start, limited in time, and given up when there is no room."""

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
from crestgate.service.http.admission import Admission
from crestgate.service.http.handshakes import TlsListener
from crestgate.service.http.protocol import HttpConnection
from servers.redis import self_signed

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


class Side:
    """A listener in this process."""

    def __init__(self, port: int, room: Admission, trust: ssl.SSLContext) -> None:
        self.port = port
        self.admission = room
        self.trust = trust

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self) -> bytes:
        """What is answered over TLS."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trust)
        writer.write(REQUEST)
        answer = await reader.read()
        writer.close()
        return answer

    async def open(self, count: int) -> None:
        """Wait until so many connections are counted."""
        async with asyncio.timeout(30):
            while len(self.admission.open) != count or self.admission.budget.connections("http") != count:
                await asyncio.sleep(0.001)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("tls"))


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"fine"})


def run(certificate: Path, room: int, test: Callable[[Side], Awaitable[None]]) -> None:
    async def whole() -> None:
        shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        shown.load_cert_chain(certificate, certificate.with_suffix(".key"))
        counted = Admission(ConnectionBudget(room))
        config = uvicorn.Config(app, lifespan="off", interface="asgi3", log_config=None, proxy_headers=False, ws="none")
        config.load()
        state = ServerState()

        def create() -> HttpConnection:
            return HttpConnection(config, state, {}, admission=counted)

        listening = socket.create_server(("127.0.0.1", 0))
        listener = TlsListener(listening, create, shown, counted)
        trust = ssl.create_default_context(cafile=str(certificate))
        async with asyncio.timeout(60):
            await test(Side(listening.getsockname()[1], counted, trust))
        listener.close()
        listening.close()

    for start in (asyncio.run, uvloop.run):
        start(whole())


def test_connections_are_counted_until_they_end(certificate: Path) -> None:
    async def test(side: Side) -> None:
        for _ in range(3):
            assert (await side.ask()).endswith(b"fine")
            await side.open(0)

    run(certificate, 100, test)


def test_unfinished_handshake_is_closed(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "MAX_HANDSHAKE_SECONDS", 0.05)

    async def test(side: Side) -> None:
        reader, writer = await side.connect()
        await side.open(0)
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
    async def test(side: Side) -> None:
        _, writer = await side.connect()
        await side.open(1)
        if data is not None:
            writer.write(data)
            await side.open(0)
        writer.close()
        await side.open(0)
        assert (await side.ask()).endswith(b"fine")

    run(certificate, 100, test)


def test_idle_handshakes_are_evicted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "SCAN_INTERVAL", 0.0)

    async def test(side: Side) -> None:
        streams = [await side.connect() for _ in range(3)]
        await side.open(3)
        for _, writer in [await side.connect() for _ in range(3)]:  # no room, and nobody has been idle for long
            writer.close()
        monkeypatch.setattr(admission, "MIN_IDLE", 0.0)
        assert (await side.ask()).endswith(b"fine")
        await side.open(2)
        monkeypatch.setattr(admission, "MIN_IDLE", 1000.0)
        for _, writer in streams:
            writer.close()
        await side.open(0)

    monkeypatch.setattr(admission, "MIN_IDLE", 1000.0)
    run(certificate, 4, test)
