"""gRPC over TLS, as its own client speaks it; and peers that are no good at TLS."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import grpc
import pytest

from headgate.config.server import Tls
from headgate.service.rpc.call import Status
from headgate.service.rpc.security import make_context
from unit.service.rpc.house import House, house, run, until
from unit.service.rpc.raw_client import HELLO

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
    return make_context(Tls(str(folder / "a.pem"), str(folder / "a.key")))


def call_all(port: int, certificate: bytes) -> None:
    """What grpcio's client gets, in a thread of its own."""
    credentials = grpc.ssl_channel_credentials(certificate)
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        assert channel.unary_unary("/t.T/AtOnce")(b"at once", timeout=20) == b"at once"
        assert channel.unary_unary("/t.T/InTime")(b"", timeout=20) == b""
        large = channel.unary_unary("/t.T/Large")(b"%d" % LARGE, timeout=20)
        assert large == (b"%d," % LARGE * LARGE)[:LARGE]
        assert channel.unary_unary("/t.T/AtOnce")(large, timeout=20) == large
        messages = [b"%d" % n * n for n in range(0, 3000, 100)]
        assert list(channel.stream_stream("/t.T/Stream")(iter(messages), timeout=20)) == messages
        assert list(channel.stream_stream("/t.T/First")(iter(messages[1:]), timeout=20)) == messages[1:2]
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/t.T/Refuses")("nö, 100 %\n".encode(), timeout=20)
        assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.ABORTED, "nö, 100 %\n")
        with pytest.raises(grpc.RpcError) as late:
            channel.unary_unary("/t.T/Waits")(b"", timeout=0.1)
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        call = channel.unary_unary("/t.T/AtOnce")
        with pytest.raises(grpc.RpcError) as compressed:
            call(b"x" * 1000, timeout=20, compression=grpc.Compression.Gzip)
        assert compressed.value.code().value[0] == Status.UNIMPLEMENTED


async def shake(listener: House, context: ssl.SSLContext) -> None:
    try:
        _, writer = await asyncio.open_connection("localhost", listener.port, ssl=context)
        writer.close()
    except OSError:
        pass


def test_its_own_client_can_call_everything_over_tls(folder: Path) -> None:
    async def test() -> None:
        async with house(context(folder)) as listener:
            await asyncio.to_thread(call_all, listener.port, (folder / "a.pem").read_bytes())
            await until(lambda: not listener.connections)
            await until(lambda: listener.did.cancelled == listener.did.begun)

    run(test)


def test_peers_that_are_no_good_at_tls_are_not_worth_a_line_in_the_log(folder: Path) -> None:
    async def test() -> None:
        async with house(context(folder)) as listener:
            for sent in (b"", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
                _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                writer.write(sent)
                await writer.drain()
                writer.close()
            await shake(listener, ssl.create_default_context())  # which does not trust it
            old = ssl.create_default_context(cafile=str(folder / "a.pem"))
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            old.set_ciphers("ECDHE+AES+SHA256:!AESGCM")
            await shake(listener, old)
            await asyncio.to_thread(call_all, listener.port, (folder / "a.pem").read_bytes())

    run(test)


def test_who_is_through_with_tls_when_all_is_over_is_not_let_in(folder: Path) -> None:
    async def test() -> None:
        async with house(context(folder)) as listener:
            reader, writer = await asyncio.open_connection("localhost", listener.port)
            await until(lambda: listener.every)
            await listener.close(0)
            try:
                await writer.start_tls(ssl.create_default_context(cafile=str(folder / "a.pem")))
                writer.write(HELLO)
                assert await reader.read() == b""
            except OSError:
                pass
            assert not listener.connections
            writer.close()

    run(test)
