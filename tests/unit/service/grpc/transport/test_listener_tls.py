"""gRPC over TLS with grpcio, and failed handshakes."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import grpc
import pytest

from crestgate.service.grpc.transport.call import RpcStatus
from crestgate.service.grpc.transport.tls import create_tls_context
from unit.service.grpc.transport.listener_harness import ListenerHarness, open_listener, run, until
from unit.service.grpc.transport.raw_client import CLIENT_PREFACE

LARGE = 1_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", "a.key", "-out", "a.pem"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", "-x509", "-days", "2", "-nodes", *key, *name]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def context(folder: Path) -> ssl.SSLContext:
    return create_tls_context(str(folder / "a.pem"), str(folder / "a.key"))


def call_all(port: int, certificate: bytes) -> None:
    """Make calls with grpcio's client; runs in its own thread."""
    credentials = grpc.ssl_channel_credentials(certificate)
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        assert channel.unary_unary("/t.T/Sync")(b"at once", timeout=20) == b"at once"
        assert channel.unary_unary("/t.T/Async")(b"", timeout=20) == b""
        large = channel.unary_unary("/t.T/Large")(b"%d" % LARGE, timeout=20)
        assert large == (b"%d," % LARGE * LARGE)[:LARGE]
        assert channel.unary_unary("/t.T/Sync")(large, timeout=20) == large
        messages = [b"%d" % n * n for n in range(0, 3000, 100)]
        assert list(channel.stream_stream("/t.T/Stream")(iter(messages), timeout=20)) == messages
        assert list(channel.stream_stream("/t.T/First")(iter(messages[1:]), timeout=20)) == messages[1:2]
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/t.T/Refuses")("nö, 100 %\n".encode(), timeout=20)
        assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.ABORTED, "nö, 100 %\n")
        with pytest.raises(grpc.RpcError) as late:
            channel.unary_unary("/t.T/Waits")(b"", timeout=0.1)
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        call = channel.unary_unary("/t.T/Sync")
        with pytest.raises(grpc.RpcError) as compressed:
            call(b"x" * 1000, timeout=20, compression=grpc.Compression.Gzip)
        assert compressed.value.code().value[0] == RpcStatus.UNIMPLEMENTED


async def attempt_handshake(listener: ListenerHarness, context: ssl.SSLContext) -> None:
    try:
        _, writer = await asyncio.open_connection("localhost", listener.port, ssl=context)
        writer.close()
    except OSError:
        pass


def test_grpcio_client_over_tls(folder: Path) -> None:
    async def test() -> None:
        async with open_listener(context(folder)) as listener:
            await asyncio.to_thread(call_all, listener.port, (folder / "a.pem").read_bytes())
            await until(lambda: not listener.connections)
            await until(lambda: listener.handlers.cancelled == listener.handlers.started)

    run(test)


def test_failed_handshakes_are_not_logged(folder: Path) -> None:
    async def test() -> None:
        async with open_listener(context(folder)) as listener:
            for sent in (b"", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
                _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                writer.write(sent)
                await writer.drain()
                writer.close()
            await attempt_handshake(listener, ssl.create_default_context())  # it does not trust the certificate
            old = ssl.create_default_context(cafile=str(folder / "a.pem"))
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            old.set_ciphers("ECDHE+AES+SHA256:!AESGCM")
            await attempt_handshake(listener, old)
            await asyncio.to_thread(call_all, listener.port, (folder / "a.pem").read_bytes())

    run(test)


def test_handshake_after_close_is_aborted(folder: Path) -> None:
    async def test() -> None:
        async with open_listener(context(folder)) as listener:
            reader, writer = await asyncio.open_connection("localhost", listener.port)
            await until(lambda: listener.all_connections)
            await listener.close(0)
            try:
                await writer.start_tls(ssl.create_default_context(cafile=str(folder / "a.pem")))
                writer.write(CLIENT_PREFACE)
                assert await reader.read() == b""
            except OSError:
                pass
            assert not listener.connections
            writer.close()

    run(test)
