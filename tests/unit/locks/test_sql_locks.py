"""SQL locks, in SQLite: clock steps, failed transactions, exhausted pools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import insert, literal_column, select, text, update
from sqlalchemy.exc import IntegrityError

from crestgate.errors import LeaseLostError, StoreError
from crestgate.locks import open_locks
from crestgate.locks.sql import SqlLocks
from crestgate.stores.sql.schema import locks as table
from servers.mariadb import MariaDB
from servers.process import GivenServer

NAME = "client:42"
NOW = 1_700_000_000_000_000
HOUR = 3_600_000_000


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[SqlLocks]:
    with open_locks(f"sqlite:///{tmp_path}/locks.db?timeout_ms=50&pool_size=1") as locks:
        yield cast(SqlLocks, locks)


def set_clock(locks: SqlLocks, microseconds: int) -> None:
    locks.clock = literal_column(str(microseconds))


def test_lease_uses_the_clock_of_the_database(locks: SqlLocks) -> None:
    set_clock(locks, NOW)
    assert locks.attempt(NAME, "first", 10.0) == NOW
    set_clock(locks, NOW + 9_999_999)
    assert locks.attempt(NAME, "second", 10.0) is None
    set_clock(locks, NOW + 10_000_000)
    assert locks.attempt(NAME, "second", 10.0) == NOW + 10_000_000


def test_clock_set_back(locks: SqlLocks) -> None:
    """A lock is held for an hour at most; a longer remaining time is ignored. Versions still grow."""
    set_clock(locks, NOW + 3 * HOUR)
    assert locks.attempt(NAME, "first", 10.0) == NOW + 3 * HOUR
    set_clock(locks, NOW)
    assert locks.attempt(NAME, "second", 10.0) == NOW + 3 * HOUR + 1


def test_row_contents(locks: SqlLocks) -> None:
    with locks.hold(NAME, lease=10.0) as lease, locks.guarded(lease) as connection:
        ((name, version, holder, expires),) = connection.execute(select(table)).all()
        assert (name, version, holder) == (b"cg:client:42", lease.version, lease.holder)
        assert expires == version + 10_000_000
    with locks.engine.connect() as connection:
        assert connection.execute(select(table.c.holder)).scalar() == lease.holder
        assert connection.execute(select(table.c.expires_us)).scalar_one() < expires


def test_deleted_or_changed_row_loses_the_lease(locks: SqlLocks) -> None:
    with locks.hold(NAME) as lease:
        with locks.engine.begin() as connection:
            connection.execute(update(table).values(holder="another"))
        with pytest.raises(LeaseLostError), locks.guarded(lease):
            pytest.fail("must not run")
        with locks.engine.begin() as connection:
            connection.execute(table.delete())
        with pytest.raises(LeaseLostError), locks.guarded(lease):
            pytest.fail("must not run")


def test_errors_of_guarded_statements_pass_through(locks: SqlLocks) -> None:
    def fail() -> None:
        with locks.hold(NAME) as lease, locks.guarded(lease) as connection:
            row = {"name": b"x", "version": 1, "holder": "", "expires_us": 0}
            connection.execute(insert(table).values(row))
            connection.execute(insert(table).values(row))

    with pytest.raises(IntegrityError):
        fail()
    with locks.engine.connect() as connection:
        assert connection.execute(select(table.c.name)).scalars().all() == [b"cg:client:42"], "nothing was written"


def test_pool_exhausted(mariadb: MariaDB | GivenServer) -> None:
    joint = "&" if "?" in mariadb.url else "?"
    with open_locks(f"{mariadb.url}{joint}prefix=busy&pool_size=1&timeout_ms=1000") as locks:
        message = r"all connections of the pool are busy; see pool_size"
        with cast(SqlLocks, locks).engine.connect(), pytest.raises(StoreError, match=message), locks.hold(NAME):
            pytest.fail("must not run")


def test_database_locked_by_another(locks: SqlLocks, tmp_path: Path) -> None:
    with open_locks(f"sqlite:///{tmp_path}/locks.db") as opened:
        other = cast(SqlLocks, opened)
        with locks.hold(NAME) as lease:
            with other.engine.connect() as connection:
                connection.execute(text("BEGIN IMMEDIATE"))
                message = r"lock wait timeout after 0\.05 s"
                with pytest.raises(StoreError, match=message), locks.guarded(lease):
                    pytest.fail("must not run")
                with pytest.raises(TimeoutError), locks.hold("another", wait=0):
                    pytest.fail("must not run")
            with locks.guarded(lease):
                pass


def test_dropped_tables(locks: SqlLocks) -> None:
    with locks.engine.begin() as connection:
        connection.execute(text("DROP TABLE crestgate_locks"))
    with pytest.raises(StoreError, match=r"SQLite file .*locks\.db: no such table: crestgate_locks"), locks.hold(NAME):
        pytest.fail("must not run")
