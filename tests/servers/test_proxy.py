"""The modes of the proxy, and the return to normal."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from servers.machine import PATIENCE, free_port, until
from servers.proxy import CuttingProxy
from servers.redis import RedisServer

PONG = b"+PONG\r\n"


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def proxy(redis: RedisServer) -> Iterator[CuttingProxy]:
    before = threading.active_count()
    with CuttingProxy(redis.port) as proxy:
        yield proxy
    assert threading.active_count() == before


@contextmanager
def connected(proxy: CuttingProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE) as connection:
        yield connection


def ask(connection: socket.socket, *words: str) -> bytes:
    connection.sendall(" ".join(words).encode() + b"\r\n")
    return connection.recv(1000)


def rest(connection: socket.socket) -> bytes:
    """All data until the connection is closed."""
    return b"".join(iter(lambda: connection.recv(1000), b""))


def test_proxy_passes_everything(proxy: CuttingProxy) -> None:
    with connected(proxy) as one, connected(proxy) as other:
        assert [ask(one, "PING"), ask(other, "PING"), ask(one, "PING")] == [PONG] * 3
        assert proxy.accepted == 2
        big = "x" * 10_000_000
        one.sendall(f"*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${len(big)}\r\n{big}\r\n".encode())
        assert one.recv(100) == b"+OK\r\n"
        one.sendall(b"GET big\r\nQUIT\r\n")
        assert rest(one) == f"${len(big)}\r\n{big}\r\n+OK\r\n".encode()


def test_proxy_refuses_connections(proxy: CuttingProxy) -> None:
    with connected(proxy) as connection:
        assert ask(connection, "PING") == PONG
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionRefusedError), connected(proxy):
        pass
    proxy.pass_all()
    with connected(proxy) as connection:
        assert ask(connection, "PING") == PONG


def test_proxy_hangs_and_delivers_later(proxy: CuttingProxy, redis: RedisServer) -> None:
    with connected(proxy) as old:
        assert ask(old, "PING") == PONG
        proxy.hang()
        with connected(proxy) as new:
            for connection in (old, new):
                connection.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    ask(connection, "INCR", "late")
                connection.settimeout(PATIENCE)
            assert redis.cli("GET", "late") == "", "nothing came through"
            proxy.pass_all()
            assert {old.recv(100), new.recv(100)} == {b":1\r\n", b":2\r\n"}


def test_proxy_hangs_and_loses_cut_data(proxy: CuttingProxy, redis: RedisServer) -> None:
    proxy.hang()
    with connected(proxy) as connection:
        connection.sendall(b"INCR lost\r\n")
        time.sleep(0.1)  # long enough to arrive, if it could
        proxy.cut()
    proxy.pass_all()
    with connected(proxy) as connection:
        assert ask(connection, "PING") == PONG
    assert redis.cli("GET", "lost") == ""


def test_proxy_holds_back_replies_only(proxy: CuttingProxy, redis: RedisServer) -> None:
    with connected(proxy) as connection:
        proxy.hang(replies_only=True)
        connection.sendall(b"INCR done\r\n")
        until("it is done", lambda: redis.cli("GET", "done") == "1")
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)


@pytest.mark.parametrize("count", [0, 1, 6, 7])
def test_proxy_cuts_in_mid_reply_once(count: int, proxy: CuttingProxy) -> None:
    with connected(proxy) as connection:
        assert ask(connection, "PING") == PONG
        proxy.cut_after(count)
        connection.sendall(b"PING\r\n")
        assert rest(connection) == PONG[:count]
    with connected(proxy) as connection:
        assert ask(connection, "PING") == PONG


def test_proxy_delays_replies(proxy: CuttingProxy) -> None:
    with connected(proxy) as connection:
        proxy.delay(0.2)
        for _ in range(2):
            before = time.monotonic()
            assert ask(connection, "PING") == PONG
            assert time.monotonic() - before >= 0.2


def test_proxy_to_a_server_that_is_down() -> None:
    with CuttingProxy(free_port()) as proxy, connected(proxy) as connection:
        assert connection.recv(1) == b""


def test_share_of_replies_is_dropped_after_the_request_was_executed(redis: RedisServer, proxy: CuttingProxy) -> None:
    redis.cli("SET", "n", "0")
    proxy.drop_replies(0.5, seed=3)
    answered = 0
    for _ in range(40):
        with connected(proxy) as connection:
            answered += bool(ask(connection, "INCR", "n"))
    assert 0 < answered < 40
    assert redis.cli("GET", "n") == "40"
    proxy.pass_all()
    with connected(proxy) as connection:
        assert ask(connection, "PING") == PONG


def test_connections_of_one_address_are_unharmed(redis: RedisServer) -> None:
    with CuttingProxy(redis.port, unharmed="127.0.0.2") as proxy:
        other = socket.create_connection((proxy.host, proxy.port), timeout=30, source_address=("127.0.0.2", 0))
        with other, connected(proxy) as connection:
            assert ask(connection, "PING") == ask(other, "PING") == PONG
            proxy.drop_replies(1.0)
            assert ask(connection, "PING") == b""
            assert ask(other, "PING") == PONG
            proxy.hang()
            proxy.cut()
            proxy.forget_connections()
            assert ask(other, "PING") == PONG


def test_replies_pass_byte_by_byte(proxy: CuttingProxy) -> None:
    proxy.dribble(1, 0.001)
    with connected(proxy) as connection:
        assert ask(connection, "PING") == PONG[:1]
        assert b"".join(connection.recv(100) for _ in PONG[1:]) == PONG[1:]


def test_forgotten_connections_stay_open_and_silent(proxy: CuttingProxy) -> None:
    with connected(proxy) as old:
        assert ask(old, "PING") == PONG
        proxy.forget_connections()
        old.sendall(b"PING\r\n")
        with connected(proxy) as new:
            assert ask(new, "PING") == PONG
        old.settimeout(0.05)
        with pytest.raises(TimeoutError):
            old.recv(100)
