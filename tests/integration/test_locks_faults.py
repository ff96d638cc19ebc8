"""Locks whose server dies, hangs or cuts connections: every call ends in time with an error that names the server."""

from __future__ import annotations

import itertools
import logging
import os
import re
import time
import traceback
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from crestgate.errors import StoreError
from crestgate.locks import open_locks
from integration.lock_programs import create_values_table, read, write
from servers.machine import free_port
from servers.mariadb import MariaDB
from servers.postgres import Postgres
from servers.process import GivenServer
from servers.proxy import CuttingProxy
from servers.redis import RedisServer

NAME = "client:42"
_numbers = itertools.count()


@pytest.fixture(params=["redis_server", "mariadb", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    prefix = f"faults-{os.getpid()}-{next(_numbers)}"
    return f"{request.getfixturevalue(request.param).url}?prefix={prefix}&timeout_ms=1500"


@pytest.fixture
def value() -> str:
    """The name of the value written under the lock, unique to the test."""
    return f"value-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def proxy(url: str) -> Iterator[CuttingProxy]:
    port = urlsplit(url).port
    assert port is not None
    with CuttingProxy(port) as proxy:
        yield proxy


@pytest.fixture
def locks(url: str, proxy: CuttingProxy) -> Iterator[Any]:
    """Locks through the proxy."""
    with open_locks(url.replace(f":{urlsplit(url).port}/", f":{proxy.port}/")) as locks:
        create_values_table(locks)
        yield locks


def assert_no_library_traceback(error: StoreError) -> None:
    """The error shows no traceback of the libraries below."""
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert not re.search("pymysql|psycopg|sqlalchemy|/redis/", "".join(traceback.format_exception(error)))


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("redis://user:secret@127.0.0.1:{port}/0", "Redis at 127.0.0.1:{port}: "),
        ("redis+unix://:secret@/nowhere/{port}", "Redis at /nowhere/{port}: "),
        ("redis+sentinel://:secret@127.0.0.1:{port}/mymaster", "Redis 'mymaster' of the Sentinels 127.0.0.1:{port}: "),
        ("redis+cluster://:secret@127.0.0.1:{port}", "Redis Cluster at 127.0.0.1:{port}: "),
        ("mysql://user:secret@127.0.0.1:{port}/limits", "MySQL at 127.0.0.1:{port}/limits: "),
        ("postgresql://user:secret@127.0.0.1:{port}/limits", "PostgreSQL at 127.0.0.1:{port}/limits: "),
        ("sqlite:////nowhere/{port}.db", "SQLite file /nowhere/{port}.db: "),
        ("file:///proc/self/{port}", "lock files in /proc/self/{port}: "),
    ],
)
def test_unreachable_server_is_named(url: str, where: str) -> None:
    port = str(free_port())
    with pytest.raises(StoreError, match=re.escape(where.replace("{port}", port))) as raised:
        open_locks(url.replace("{port}", port))
    assert "secret" not in str(raised.value)
    assert_no_library_traceback(raised.value)


def test_wrong_password_is_redacted(url: str) -> None:
    wrong = re.sub(r"//.*@|//", "//crestgate:wrong-secret@", url, count=1)
    with pytest.raises(StoreError, match=rf"at 127.0.0.1:{urlsplit(url).port}") as raised:
        open_locks(wrong)
    assert "wrong-secret" not in str(raised.value)
    assert_no_library_traceback(raised.value)


def test_server_dies_while_a_lock_is_held(locks: Any, proxy: CuttingProxy, caplog: pytest.LogCaptureFixture) -> None:
    with locks.hold(NAME, lease=0.2) as lease:
        proxy.refuse()
        with pytest.raises(StoreError, match=f"at 127.0.0.1:{proxy.port}") as raised, locks.guarded(lease):
            pytest.fail("it cannot have been compared")
        assert_no_library_traceback(raised.value)
        with pytest.raises(StoreError, match=f"at 127.0.0.1:{proxy.port}"), locks.hold("another"):
            pytest.fail("it cannot have been taken")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "lock release failed, the lock stays until its lease ends" in caplog.text
    proxy.pass_all()
    with locks.hold(NAME, wait=20) as again:
        assert again.version > lease.version


def test_cut_connections_are_reopened(locks: Any, value: str, proxy: CuttingProxy) -> None:
    with locks.hold(NAME):
        pass
    proxy.cut()
    with locks.hold(NAME, wait=20) as lease:
        proxy.cut()
        with locks.guarded(lease) as transaction:
            write(locks, transaction, value, 1)
    assert read(locks, value) == 1


def test_hanging_server_times_out(locks: Any, proxy: CuttingProxy) -> None:
    with locks.hold(NAME, lease=0.2):
        proxy.hang()
        began = time.monotonic()
        with pytest.raises(StoreError, match=f"at 127.0.0.1:{proxy.port}"), locks.hold("another", wait=0):
            pytest.fail("it cannot have been taken")
        assert time.monotonic() - began < 5  # a response timeout and a connection timeout
    proxy.cut()
    proxy.pass_all()
    with locks.hold(NAME, wait=20):
        pass


def test_lost_commit_response_is_reported_as_unknown(url: str, locks: Any, value: str, proxy: CuttingProxy) -> None:
    def write_in_doubt() -> None:
        with locks.hold(NAME, lease=0.3) as lease, locks.guarded(lease) as transaction:
            write(locks, transaction, value, 1)
            proxy.hang(replies_only=True)

    with pytest.raises(StoreError, match="the outcome of the write is unknown"):
        write_in_doubt()
    proxy.cut()
    proxy.pass_all()
    with open_locks(url) as direct, direct.hold(NAME, wait=20):
        assert read(direct, value) == 1


def test_redis_command_errors_are_passed_on(redis_server: RedisServer | GivenServer) -> None:
    def refused() -> None:
        with open_locks(redis_server.url) as locks, locks.hold(NAME) as lease, locks.guarded(lease) as pipeline:
            pipeline.execute_command("NO-SUCH-COMMAND")

    with pytest.raises(StoreError, match=r"(?i)unknown command") as raised:
        refused()
    assert "not known" not in str(raised.value)


@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_missing_create_permission_is_explained(kind: str) -> None:
    with MariaDB() if kind == "mariadb" else Postgres() as server:
        if isinstance(server, MariaDB):
            server.sql("CREATE USER weak IDENTIFIED BY 'secret'; GRANT SELECT ON crestgate.* TO weak")
        else:
            server.sql("CREATE USER weak PASSWORD 'secret'; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        weak = re.sub("//.*@", "//weak:secret@", server.url)
        redacted = re.escape(weak.replace("secret", "***"))
        message = (
            rf"denied.*: run `crestgate db upgrade --store '{redacted}'` once, with an account that may create tables"
        )
        with pytest.raises(StoreError, match=message) as raised:
            open_locks(weak)
        assert_no_library_traceback(raised.value)
