"""A server that is unreachable or not a Redis: a StoreError with its address, without a password."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from crestgate import AsyncLimiter, Limiter, StoreError
from crestgate.stores.redis import store as redis_store
from crestgate.testing import AsyncStoreAdapter
from servers.machine import free_port
from servers.redis import RedisCluster, RedisSentinels, RedisServer
from unit.stores.redis.store_requests import limit, store_at, take

SECRET = "hunter2"
HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
MYSQL = b"\x4a\x00\x00\x00\x0a11.8.3-MariaDB\x00\x01\x00\x00\x00abcdefgh\x00"


@contextmanager
def listener(greeting: bytes = b"", answer: bytes | None = None) -> Iterator[int]:
    """The port of another kind of server: it greets, answers any command, and disconnects; or never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.sendall(greeting)
                        while connection.recv(65536) and answer is None:
                            pass
                        connection.sendall(answer or b"")
                    except OSError:
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def refused(url: str, *words: str) -> None:
    """Both limiters raise on connect, with all these words in the message."""

    async def enter() -> None:
        async with AsyncLimiter(url):
            raise AssertionError("it was let in")

    for begin in (lambda: Limiter(url), lambda: asyncio.run(enter())):
        with pytest.raises(StoreError) as raised:
            begin()
        for word in words:
            assert word in str(raised.value)
        error_message = "".join(traceback.format_exception(raised.value)) + repr(raised.value)
        assert SECRET not in error_message


def with_secret(port: int, scheme: str = "redis", rest: str = "") -> str:
    return f"{scheme}://app:{SECRET}@127.0.0.1:{port}{rest}"


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    with RedisServer(password="right") as server:
        server.cli("ACL", "SETUSER", "reader", "on", f">{SECRET}", "~*", "+@read")
        yield server


@pytest.fixture(scope="module")
def encrypted() -> Iterator[RedisServer]:
    with RedisServer(tls=True) as server:
        yield server


def test_wrong_password(guarded: RedisServer) -> None:
    refused(with_secret(guarded.port), f"127.0.0.1:{guarded.port}", "WRONGPASS")
    refused(f"redis://:{SECRET}@127.0.0.1:{guarded.port}", f"127.0.0.1:{guarded.port}", "WRONGPASS")


def test_missing_password(guarded: RedisServer) -> None:
    refused(f"redis://127.0.0.1:{guarded.port}", f"127.0.0.1:{guarded.port}", "NOAUTH")


def test_password_without_requirepass(server: RedisServer) -> None:
    refused(f"redis://:{SECRET}@127.0.0.1:{server.port}", f"127.0.0.1:{server.port}", "AUTH")


def test_user_without_permission(guarded: RedisServer) -> None:
    refused(f"redis://reader:{SECRET}@127.0.0.1:{guarded.port}", f"127.0.0.1:{guarded.port}", "NOPERM")


def test_unknown_database(server: RedisServer) -> None:
    refused(f"{server.url.removesuffix('/0')}/16", f"127.0.0.1:{server.port}", "out of range")


@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey", "redis+cluster"])
def test_connection_refused(scheme: str) -> None:
    port = free_port()
    refused(with_secret(port, scheme), f"127.0.0.1:{port}", "refuses connections")


def test_sentinels_refuse_connections() -> None:
    ports = free_port(), free_port()
    url = f"redis+sentinel://app:{SECRET}@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/mymaster?sentinel_password={SECRET}"
    refused(url, *(f"127.0.0.1:{port}" for port in ports), "refuses connections", "mymaster")


def test_missing_unix_socket() -> None:
    refused(f"redis+unix://:{SECRET}@/nowhere/redis.sock", "/nowhere/redis.sock", "No such file")


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "l" * 64 + ".example"])
@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_unknown_host(scheme: str, host: str) -> None:
    refused(f"{scheme}://:{SECRET}@{host}:6379", f"{host}:6379")


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redis+sentinel"])
@pytest.mark.parametrize(
    ("greeting", "answer", "problem"),
    [
        (b"", HTTP, "not a Redis"),
        (MYSQL, b"\x15\x00\x00\x01\xff\x13\x04bad handshake", "not a Redis"),
        (b"220 mail.example ESMTP\r\n", b"500 what?\r\n", "not a Redis"),
        (b"", b"", "closed the connection"),
        (b"", b"+OK\r\n" * 9, ""),
        (b"", b"*2\r\n$1\r\nx\r\n:7\r\n" * 9, ""),
    ],
)
def test_server_that_is_not_redis(scheme: str, greeting: bytes, answer: bytes, problem: str) -> None:
    with listener(greeting, answer) as port:
        refused(with_secret(port, scheme, "/mymaster" if "sentinel" in scheme else ""), f"127.0.0.1:{port}", problem)
        if scheme == "redis":
            refused(f"redis://127.0.0.1:{port}", f"127.0.0.1:{port}")


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster"])
def test_server_that_never_replies(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "CONNECT_SECONDS", 0.2)
    with listener() as port:
        refused(with_secret(port, scheme), f"127.0.0.1:{port}", "did not answer within")


def test_tls_to_a_plain_server(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "CONNECT_SECONDS", 0.2)
    refused(with_secret(server.port, "rediss"), f"127.0.0.1:{server.port}")


def test_plain_connection_to_a_tls_server(encrypted: RedisServer) -> None:
    refused(f"redis://127.0.0.1:{encrypted.port}", f"127.0.0.1:{encrypted.port}")


def test_untrusted_certificate(encrypted: RedisServer) -> None:
    refused(f"rediss://localhost:{encrypted.port}", f"localhost:{encrypted.port}", "self-signed certificate")


def test_cluster_url_of_a_single_server(server: RedisServer) -> None:
    refused(f"redis+cluster://127.0.0.1:{server.port}", f"127.0.0.1:{server.port}", "cluster support disabled")


def test_sentinel_url_of_a_server(server: RedisServer) -> None:
    refused(f"redis+sentinel://127.0.0.1:{server.port}/mymaster", f"127.0.0.1:{server.port}", "unknown command")


def test_unknown_master_name(redis_sentinels: RedisSentinels) -> None:
    refused(redis_sentinels.url.replace("mymaster", "other"), "knows no master named 'other'")


# -- after connecting -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sync", "async"])
def error_message(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """The error of a store that is used without having been connected."""

    def ask(url: str) -> str:
        store = store_at(url, timeout_ms=300)
        on = store if request.param == "sync" else AsyncStoreAdapter(store)
        with pytest.raises(StoreError) as raised:
            take(on, limit("5/hour"))
        on.close()
        return str(raised.value)

    return ask


def test_check_reports_the_same_error(error_message: Callable[[str], str], guarded: RedisServer) -> None:
    port = free_port()
    assert error_message(with_secret(port)) == f"Redis at 127.0.0.1:{port}: it refuses connections; is it running?"
    assert error_message(with_secret(guarded.port)).startswith(f"Redis at 127.0.0.1:{guarded.port}: WRONGPASS")
    assert "a..b:6379" in error_message("redis://a..b:6379")
    with listener(b"", HTTP) as port:
        assert (
            error_message(f"redis://127.0.0.1:{port}")
            == f"Redis at 127.0.0.1:{port}: what answers there is not a Redis"
        )
    with listener(MYSQL, b"") as port:
        assert error_message(f"redis://127.0.0.1:{port}").startswith(f"Redis at 127.0.0.1:{port}: ")
    with listener() as port:
        assert (
            error_message(f"redis://127.0.0.1:{port}") == f"Redis at 127.0.0.1:{port}: it did not answer within 300 ms"
        )


def test_log_has_no_password(guarded: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    url = f"redis://:right@127.0.0.1:{guarded.port}?timeout_ms=5000"
    with caplog.at_level(logging.DEBUG), Limiter(url) as limiter:
        guarded.cli("CONFIG", "SET", "requirepass", "other")
        guarded.password = "other"
        try:
            guarded.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            time.sleep(0.15)  # a recently used connection is assumed to be open
            assert limiter.check("key", "5/hour").reason == "fail_open"
        finally:
            guarded.cli("CONFIG", "SET", "requirepass", "right")
            guarded.password = "right"
    assert "right" not in caplog.text
    assert f"127.0.0.1:{guarded.port}" in caplog.text


def test_cluster_is_discovered_from_one_node(redis_cluster: RedisCluster) -> None:
    first = redis_cluster.nodes[0].port
    dead = free_port()
    store = store_at(f"redis+cluster://127.0.0.1:{dead},127.0.0.1:{first}", prefix="found")
    store.connect()
    assert all(take(store, limit("5/hour"), f"user:{i}").allowed for i in range(20))
    store.close()
