"""Locks by rows, in SQLite: clocks that are set back, transactions that fail, connections that are all in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import insert, literal_column, select, text, update
from sqlalchemy.exc import IntegrityError

from headgate.errors import LeaseLost, StoreError
from headgate.locks import open_locks
from headgate.locks.by_row import RowLocks
from headgate.stores.sql.schema import locks as table
from servers.mariadb import MariaDB
from servers.process import GivenServer

NAME = "client:42"
NOW = 1_700_000_000_000_000
HOUR = 3_600_000_000


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[RowLocks]:
    with open_locks(f"sqlite:///{tmp_path}/locks.db?timeout_ms=50&pool_size=1") as locks:
        yield cast(RowLocks, locks)


def set_clock(locks: RowLocks, microseconds: int) -> None:
    locks.clock = literal_column(str(microseconds))


def test_a_lease_lasts_by_the_databases_clock(locks: RowLocks) -> None:
    set_clock(locks, NOW)
    assert locks.attempt(NAME, "first", 10.0) == NOW
    set_clock(locks, NOW + 9_999_999)
    assert locks.attempt(NAME, "second", 10.0) is None
    set_clock(locks, NOW + 10_000_000)
    assert locks.attempt(NAME, "second", 10.0) == NOW + 10_000_000


def test_a_clock_that_was_set_back(locks: RowLocks) -> None:
    """A lock is held for an hour at most; what would be held for longer is not believed. Versions grow all the same."""
    set_clock(locks, NOW + 3 * HOUR)
    assert locks.attempt(NAME, "first", 10.0) == NOW + 3 * HOUR
    set_clock(locks, NOW)
    assert locks.attempt(NAME, "second", 10.0) == NOW + 3 * HOUR + 1


def test_what_stands_in_the_row(locks: RowLocks) -> None:
    with locks.hold(NAME, lease=10.0) as lease, locks.guarded(lease) as connection:
        ((name, version, holder, expires),) = connection.execute(select(table)).all()
        assert (name, version, holder) == (b"hg:client:42", lease.version, lease.holder)
        assert expires == version + 10_000_000
    with locks.engine.connect() as connection:
        assert connection.execute(select(table.c.holder)).scalar() == lease.holder
        assert connection.execute(select(table.c.expires_us)).scalar_one() < expires


def test_a_row_that_was_deleted_or_changed(locks: RowLocks) -> None:
    with locks.hold(NAME) as lease:
        with locks.engine.begin() as connection:
            connection.execute(update(table).values(holder="another"))
        with pytest.raises(LeaseLost), locks.guarded(lease):
            pytest.fail("must not run")
        with locks.engine.begin() as connection:
            connection.execute(table.delete())
        with pytest.raises(LeaseLost), locks.guarded(lease):
            pytest.fail("must not run")


def test_a_statement_that_cannot_be_carried_out_is_its_writers_affair(locks: RowLocks) -> None:
    def fail() -> None:
        with locks.hold(NAME) as lease, locks.guarded(lease) as connection:
            row = {"name": b"x", "version": 1, "holder": "", "expires_us": 0}
            connection.execute(insert(table).values(row))
            connection.execute(insert(table).values(row))

    with pytest.raises(IntegrityError):
        fail()
    with locks.engine.connect() as connection:
        assert connection.execute(select(table.c.name)).scalars().all() == [b"hg:client:42"], "nothing was written"


def test_all_connections_in_use(mariadb: MariaDB | GivenServer) -> None:
    joint = "&" if "?" in mariadb.url else "?"
    with open_locks(f"{mariadb.url}{joint}prefix=busy&pool_size=1&timeout_ms=1000") as locks:
        told = r"all connections of the pool are busy; see pool_size"
        with cast(RowLocks, locks).engine.connect(), pytest.raises(StoreError, match=told), locks.hold(NAME):
            pytest.fail("must not run")


def test_a_database_that_another_keeps_locked(locks: RowLocks, tmp_path: Path) -> None:
    with open_locks(f"sqlite:///{tmp_path}/locks.db") as opened:
        other = cast(RowLocks, opened)
        with locks.hold(NAME) as lease:
            with other.engine.connect() as connection:
                connection.execute(text("BEGIN IMMEDIATE"))
                told = r"a transaction of somebody else kept a lock's row for 0\.05 s"
                with pytest.raises(StoreError, match=told), locks.guarded(lease):
                    pytest.fail("must not run")
                with pytest.raises(TimeoutError), locks.hold("another", wait=0):
                    pytest.fail("must not run")
            with locks.guarded(lease):
                pass


def test_a_database_without_tables_any_more(locks: RowLocks) -> None:
    with locks.engine.begin() as connection:
        connection.execute(text("DROP TABLE headgate_locks"))
    with pytest.raises(StoreError, match=r"SQLite file .*locks\.db: no such table: headgate_locks"), locks.hold(NAME):
        pytest.fail("must not run")
