"""The servers of the tests do what the tests rely on: they answer, freeze, die, come back, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from servers.process import GivenServer, ServerError, find, gone, until
from servers.redis import RedisServer

TESTS = Path(__file__).resolve().parent.parent


def test_a_server_that_is_not_installed_is_an_error_that_says_what_to_install() -> None:
    with pytest.raises(ServerError, match="apt-get install no-such-package"):
        find("no-such-program", "no-such-package")


def test_a_server_that_does_not_start_shows_its_log() -> None:
    with pytest.raises(ServerError, match="no-such-setting"), RedisServer(settings={"no-such-setting": "1"}):
        pass


def test_nothing_outlives_tests_that_are_killed() -> None:
    program = (
        "from servers.redis import RedisServer; server = RedisServer(); server.start(); "
        "print(server.pid, server.folder, flush=True); input()"
    )
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as tests:
        assert tests.stdout is not None
        pid, folder = tests.stdout.readline().decode().split()
        assert not gone(int(pid))
        tests.send_signal(signal.SIGKILL)
    until("the server is gone too", lambda: gone(int(pid)))
    shutil.rmtree(folder)


def test_redis_answers_freezes_dies_and_comes_back() -> None:
    with RedisServer() as server:
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        server.cli("SET", "key", "value")
        server.pause()
        with pytest.raises(subprocess.TimeoutExpired):
            server.cli("PING", patience=0.1)
        server.resume()
        assert server.cli("GET", "key") == "value"
        first = server.pid
        server.kill()
        assert gone(first)
        with pytest.raises(ServerError, match="refused"):
            server.cli("PING")
        server.start()
        assert server.cli("GET", "key") == ""
        second = server.pid
        server.restart()
        assert gone(second)
        last, folder = server.pid, server.folder
        server.pause()  # and must stop all the same
    assert gone(last)
    assert not folder.exists()


def test_redis_with_everything() -> None:
    with RedisServer(unix=True, password="secret", tls=True, maxmemory="2mb") as server:
        assert server.url == f"rediss://:secret@127.0.0.1:{server.port}/0"
        assert server.unix_url == f"redis+unix://:secret@{server.socket}"
        assert server.socket is not None
        assert server.socket.is_socket()
        assert server.cli("CONFIG", "GET", "maxmemory").split() == ["maxmemory", str(2 * 1024 * 1024)]
        assert server.certificate is not None
        context = ssl.create_default_context(cafile=str(server.certificate))
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(b"PING\r\n")
            assert secure.recv(100).startswith(b"-NOAUTH")


def test_the_redis_of_all_tests(redis_server: RedisServer | GivenServer) -> None:
    assert redis_server.url.startswith(("redis", "valkey"))
