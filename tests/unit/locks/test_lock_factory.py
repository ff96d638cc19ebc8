"""URLs of locks: accepted and refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from crestgate.errors import ConfigError, StoreError
from crestgate.locks import open_locks
from crestgate.locks.file import FileLocks
from crestgate.locks.sql import SqlLocks


def test_file(tmp_path: Path) -> None:
    for _ in range(2):
        locks = open_locks(f"file://{tmp_path}/with%20blank/?prefix=app&timeout_ms=50")
        assert isinstance(locks, FileLocks)
        assert (locks.folder, locks.prefix, locks.timeout) == (f"{tmp_path}/with blank/", "app", 0.05)
        assert Path(locks.folder).is_dir()


def test_only_the_last_folder_is_created(tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match=f"lock files in .*: the folder {tmp_path}/none does not exist and is not created"
    ):
        open_locks(f"file://{tmp_path}/none/deep")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=f"lock files in {tmp_path}/file: this is not a folder"):
        open_locks(f"file://{tmp_path}/file")


def test_sqlite(tmp_path: Path) -> None:
    with open_locks(f"sqlite:///{tmp_path}/locks.db?prefix=app&timeout_ms=50&pool_size=2") as locks:
        assert isinstance(locks, SqlLocks)
        assert (locks.prefix, locks.timeout) == ("app", 0.05)
        assert locks.address == f"SQLite file {tmp_path}/locks.db"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://", "unknown URL of locks 'memory://': write redis://host:6379/0, mysql://"),
        ("no url", "unknown URL of locks 'no url'"),
        ("ftp://user:secret@host", "unknown URL of locks 'ftp://user:***@host'"),
        ("file://host/folder", "name the folder, with three slashes: file:///path/to/folder"),
        ("file:///", "name the folder"),
        ("file:///x?max_keys=1", "unknown option 'max_keys'; there are prefix, timeout_ms, pool_size"),
        ("file:///x?prefix=", "prefix must not be empty"),
        ("file:///x?timeout_ms=0", "timeout_ms must be a whole number from 1"),
        ("redis://localhost?tls=yes", "unknown option 'tls'"),
        ("redis://localhost/x", "the database is a number, as in redis://localhost:6379/0, not 'x'"),
        ("redis://one,other", "one server is named here; several are redis+sentinel:// or redis+cluster://"),
        ("redis://localhost?ssl_ca_certs=x", "ssl_ca_certs is only valid with TLS: write rediss://"),
        ("rediss://localhost?ssl_cert_reqs=some", "ssl_cert_reqs must be required or none, not 'some'"),
        ("redis+unix://host", "name the socket, with three slashes"),
        ("redis+sentinel://host", "name the master: redis+sentinel://host:26379/mymaster/0"),
        ("redis+cluster://host/1", "a cluster has no numbered databases"),
        ("mysql://host", "name the database: mysql://user:password@host/database"),
        ("sqlite://", "name the file: sqlite:///relative/file"),
        ("postgresql://h/d?sslmode=no", "sslmode must be one of"),
    ],
)
def test_invalid_urls(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        open_locks(url)
    assert "secret" not in str(raised.value)


def test_url_of_another_type() -> None:
    with pytest.raises(ConfigError, match=r"locks must be a URL, such as redis://.*, not list$") as raised:
        open_locks(["redis://:secret@host"])  # type: ignore[arg-type]
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "package", "module", "extra"),
    [
        ("redis://localhost", "redis", "crestgate.locks.redis", "redis"),
        ("sqlite:////nowhere/file", "sqlalchemy", "crestgate.locks.sql", "sqlite"),
    ],
)
def test_missing_package(url: str, package: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(
        ConfigError, match=rf"the package '{package}' is missing: pip install '.\[{extra}\]' in a clone of Crestgate"
    ):
        open_locks(url)
