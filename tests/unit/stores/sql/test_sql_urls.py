"""URLs of SQL stores: options, and errors without the password."""

from __future__ import annotations

import re
import socket
import sqlite3
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from crestgate import ConfigError, StoreError
from crestgate.runtime.url_options import Options
from crestgate.stores.factory import open_store
from crestgate.stores.sql.factory import open_driver, open_sql
from crestgate.stores.sql.mysql import MysqlDriver
from crestgate.stores.sql.postgres import PostgresDriver
from crestgate.stores.sql.session import DatabaseConnectionError
from stalls import Stalls


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """An existing file for certificate options."""
    file = tmp_path / "ca.pem"
    file.touch()
    return file


def test_parts_of_a_url(authority: Path) -> None:
    driver = open_driver(Options(f"mariadb://us%40er:p%2Fss@db.example:3307/counters?ssl_ca={authority}"))
    assert isinstance(driver, MysqlDriver)
    assert driver.address[:5] == ("db.example", 3307, "us@er", "p/ss", "counters")
    assert driver.name == "MariaDB at db.example:3307/counters"
    tls = {name: value for name, value in driver.parameters().items() if name.startswith("ssl")}
    assert tls == {"ssl_ca": str(authority), "ssl_verify_cert": True, "ssl_verify_identity": True}


def test_postgresql_connection_string(authority: Path) -> None:
    driver = open_driver(Options(f"postgres://u:p%20w@[::1]/db?sslmode=verify-full&sslrootcert={authority}"))
    assert isinstance(driver, PostgresDriver)
    assert driver.name == "PostgreSQL at [::1]:5432/db"
    for part in ("host=::1", "port=5432", "user=u", "password='p w'", "dbname=db", "sslmode=verify-full"):
        assert part in driver.conninfo()


def test_unix_socket_in_url() -> None:
    assert open_driver(Options("mysql:///db?unix_socket=/run/my.sock")).name == "MySQL at /run/my.sock, database db"
    driver = open_driver(Options("postgresql:///db?unix_socket=/run/postgresql"))
    assert isinstance(driver, PostgresDriver)
    assert "host=/run/postgresql" in driver.conninfo()


def test_common_options() -> None:
    store = open_sql(Options("mysql://u@h/db?prefix=app&timeout_ms=250&pool_size=7"), None)
    assert (store.counter_ids.prefix, store.timeout, store.max_concurrent_batches, store.pool.size) == (
        b"app",
        0.25,
        7,
        7,
    )
    assert open_sql(Options("sqlite:///x?pool_size=7"), None).max_concurrent_batches == 1


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://u:secret@h", "name the database: mysql://user:password@host/database"),
        ("postgresql://u:secret@h/a/b", "name the database"),
        ("mysql://u:secret@h,h2/db", "name one server here"),
        ("mysql://u:secret@h:99999/db", "is not a server"),
        ("mysql://u:secret@h/db?sslmode=require", "unknown option 'sslmode'; there are unix_socket, ssl_ca"),
        ("postgres://u:secret@h/db?sslmode=maybe", "sslmode must be one of disable"),
        ("postgres://u:secret@h/db?password=secret", "unknown option 'password'"),
        ("mysql://u:secret@h/db?timeout_ms=0", "timeout_ms must be a whole number"),
        ("mysql://u:sec/ret@h/db", "are written %2F"),
        ("mysql://u:sec?ret@h/db", "are written %2F"),
        ("mysql://u:sec[ret@h/db", "Invalid"),
        ("maria://u:secret@h/db", "unknown store URL"),
    ],
)
def test_url_errors_do_not_show_the_password(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        open_store(url)
    output = "".join(traceback.format_exception(caught.value))
    message = output.replace("def test", "").partition("Error: ")[2]
    assert "sec" not in message.replace("second", "")
    assert "ret@" not in message


@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
def test_connection_error_does_not_show_the_password(scheme: str) -> None:
    store = open_store(f"{scheme}://me:secret@127.0.0.1:1/db")
    with pytest.raises(StoreError, match=r"SQL at 127\.0\.0\.1:1/db: .*[Cc]onnect") as caught:
        store.connect()  # type: ignore[union-attr]  # a store across a network has it
    assert "secret" not in "".join(traceback.format_exception(caught.value)).partition("Error: ")[2]
    assert "secret" not in repr(vars(vars(store)["driver"]))


@pytest.mark.parametrize("url", ["mysql://me@127.0.0.1:1/db", "postgresql://me@127.0.0.1:1/db", "sqlite:////no/file"])
def test_messages_do_not_show_driver_internals(url: str) -> None:
    store = open_store(url)
    with pytest.raises(StoreError) as caught:
        store.connect()  # type: ignore[union-attr]  # as above
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    output = "".join(traceback.format_exception(caught.value))
    assert output.count("Traceback") == 1
    assert not re.search("pymysql|psycopg|sqlite3", output)


@pytest.mark.parametrize("scheme", ["mysql", "mariadb", "postgresql"])
def test_server_of_another_kind(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        driver = open_driver(Options(f"{scheme}://me@127.0.0.1:{silent.getsockname()[1]}/db"))
        kind = {"mysql": "MySQL", "mariadb": "MariaDB", "postgresql": "PostgreSQL"}[scheme]
        message = rf"no answer in time \(0\.[01][0-9]* s\): does a {kind} server listen there\?"
        with pytest.raises(DatabaseConnectionError, match=message) as caught:
            driver.open(time.monotonic() + 0.1)
        assert caught.value.timed_out


def test_all_addresses_of_a_name_share_the_time(monkeypatch: pytest.MonkeyPatch, stalls: Stalls) -> None:
    """Two that accept data and never answer, and one that refuses."""
    with ExitStack() as stack:
        full = [stack.enter_context(_full_server()) for _ in range(2)]
        locations = [*full, ("127.0.0.1", 1)]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", location) for location in locations]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: found)
        driver = open_driver(Options("mysql://me@db.example/db"))
        before = time.monotonic()
        with pytest.raises(
            DatabaseConnectionError, match=r"Can't connect to MySQL server on 'db\.example' \(.*refused\)"
        ):
            driver.open(time.monotonic() + 0.6)
        assert 0.3 < time.monotonic() - before
        assert stalls.without(before, time.monotonic()) < 1.2


@contextmanager
def _full_server() -> Iterator[tuple[str, int]]:
    """A listener that never accepts, with a full backlog."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as waiting:
        location = server.getsockname()
        for _ in range(2):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(location)
        yield location


@pytest.mark.parametrize(
    ("scheme", "option"),
    [("mysql", "ssl_ca"), ("mysql", "ssl_key"), ("postgres", "sslrootcert"), ("postgres", "sslcert")],
)
def test_missing_certificate(scheme: str, option: str, tmp_path: Path) -> None:
    for path, problem in ((f"{tmp_path}/none", "No such file"), (str(tmp_path), "Is a directory")):
        with pytest.raises(ConfigError, match=f"{option}: the file '{path}' cannot be read: {problem}"):
            open_driver(Options(f"{scheme}://u@h/db?{option}={path}"))


def test_libpq_values_that_are_not_files() -> None:
    open_driver(Options("postgres://u@h/db?sslmode=verify-full&sslrootcert=system&sslkey=pkcs11:key"))


@pytest.mark.parametrize(
    ("url", "module", "ours", "extra"),
    [
        ("mysql://u@h/db", "pymysql", "crestgate.stores.sql.mysql", "mysql"),
        ("postgres://u@h/db", "psycopg", "crestgate.stores.sql.postgres", "postgres"),
    ],
)
def test_missing_driver(url: str, module: str, ours: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, ours, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install '.\[{extra}\]' in a clone of Crestgate"):
        open_store(url)


@pytest.mark.parametrize("package", ["sqlalchemy", "alembic"])
@pytest.mark.parametrize(
    ("url", "extra"),
    [("mysql://u@h/db", "mysql"), ("postgres://u@h/db", "postgres"), ("sqlite:///{folder}/none", "sqlite")],
)
def test_missing_migration_packages(
    url: str, extra: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ConfigError, match=rf"'{package}' is missing: pip install '.\[{extra}\]' in a clone of Crestgate"
    ):
        open_store(url.format(folder=tmp_path))
    assert not list(tmp_path.iterdir()), "nothing is created"


def test_existing_tables_need_no_migration_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/counters.db"
    monkeypatch.setitem(sys.modules, "alembic", None)
    with closing(sqlite3.connect(tmp_path / "counters.db")) as connection:
        connection.execute("CREATE TABLE other (x)")
        with pytest.raises(ConfigError, match="'alembic' is missing"):
            open_store(url)
        connection.execute("CREATE TABLE crestgate_version (version_num)")
        open_store(url)
