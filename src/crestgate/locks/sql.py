"""Locks in a SQL database: one row of `crestgate_locks` for each, and the database's own clock.

Taking a lock is a short transaction: the row is locked, read and rewritten. Nothing in the database stays locked while
a lock is held, so a holder may die, and its connection break, at any time. A guarded write is a transaction that
begins by locking the row and comparing the version; so the comparison and the write commit together, and the lock
cannot be taken in between. Row locks are polled (NOWAIT), not waited for in the database, so that every wait ends by
its timeout.

Rows are never deleted: there is one for every name that was ever locked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from crestgate.databases.engines import abandon, clock_of, is_busy, open_engine
from crestgate.databases.names import stored_name
from crestgate.errors import StoreError
from crestgate.locks.lock import Locks, lease_lost
from crestgate.locks.port import MAX_LEASE, Lease
from crestgate.runtime.backoff import poll
from crestgate.runtime.fork_safety import renew_after_fork
from crestgate.stores.sql.schema import locks
from crestgate.stores.sql.session import Driver

__all__ = ["SqlLocks"]

T = TypeVar("T")
LockRow = Row[tuple[int, str, int, int]]


class SqlLocks(Locks[Connection]):
    """Locks in the database of `driver`, whose tables exist."""

    def __init__(self, driver: Driver, *, prefix: str, timeout: float, pool_size: int | None) -> None:
        super().__init__(driver.name)
        self.prefix = prefix
        self.timeout = timeout
        self.engine = open_engine(driver, timeout, pool_size)
        self.clock = clock_of(self.engine)
        renew_after_fork(self)

    def attempt(self, name: str, holder: str, seconds: float) -> int | None:
        return self._try(lambda connection: self._take(connection, name, holder, int(seconds * 1e6)))

    def release(self, lease: Lease) -> None:
        if poll(lambda: self._try(lambda connection: self._free(connection, lease)), self.timeout) is None:
            raise self._busy()

    @contextmanager
    def guarded(self, lease: Lease) -> Iterator[Connection]:
        """A connection in a transaction, which is committed at the end of the block. Do not commit inside."""
        self.check_open()
        with self._map_errors():
            connection = self.engine.connect()
        with connection:  # which rolls back what was not committed
            with self._map_errors():
                rows = poll(lambda: self._lock_or_roll_back(connection, lease.name), self.timeout)
            if rows is None:
                raise self._busy()
            if not rows or not _is_of(rows[0], lease):
                raise lease_lost(lease)
            with self._map_errors(only_disconnects=True):
                yield connection
            with self._map_errors("; the outcome of the write is unknown", only_disconnects=True):
                connection.commit()

    def close(self) -> None:
        super().close()
        self.engine.dispose()

    def renew(self) -> None:
        """In a forked child."""
        abandon(self.engine)

    def _try(self, action: Callable[[Connection], T | None]) -> T | None:
        """The result in a separate transaction; None on a lock conflict."""
        with self._map_errors():
            try:
                with self.engine.connect() as connection:
                    return action(connection)
            except DBAPIError as error:
                if _is_busy(error):
                    return None
                raise

    def _take(self, connection: Connection, name: str, holder: str, span: int) -> int | None:
        rows = self._select(connection, name)
        if rows and _held(rows[0]):
            return None  # the common case while waiting; nothing was locked
        if rows:
            rows = self._lock(connection, name)
            if not rows or _held(rows[0]):
                return None
            now: int = rows[0].now
            version: int = max(rows[0].version + 1, now)
            values = {"version": version, "holder": holder, "expires_us": now + span}
            connection.execute(update(locks).where(locks.c.name == self._name(name)).values(values))
        else:
            now = version = connection.execute(select(self.clock)).scalar_one()
            values = {"version": version, "holder": holder, "expires_us": now + span}
            connection.execute(insert(locks).values(name=self._name(name), **values))
        connection.commit()
        return version

    def _free(self, connection: Connection, lease: Lease) -> bool:
        rows = self._lock(connection, lease.name)
        if rows and _is_of(rows[0], lease):
            release = update(locks).where(locks.c.name == self._name(lease.name)).values(expires_us=rows[0].now)
            connection.execute(release)
            connection.commit()
        return True

    def _lock(self, connection: Connection, name: str) -> list[LockRow]:
        """The row, locked until the transaction ends."""
        if self.engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        return self._select(connection, name, locking=True)

    def _lock_or_roll_back(self, connection: Connection, name: str) -> list[LockRow] | None:
        try:
            return self._lock(connection, name)
        except DBAPIError as error:
            if not _is_busy(error):
                raise
            connection.rollback()
            return None

    def _select(self, connection: Connection, name: str, *, locking: bool = False) -> list[LockRow]:
        columns = (locks.c.version, locks.c.holder, locks.c.expires_us, self.clock.label("now"))
        query = select(*columns).where(locks.c.name == self._name(name))
        return list(connection.execute(query.with_for_update(nowait=True) if locking else query))

    def _name(self, name: str) -> bytes:
        return stored_name(self.prefix, name)

    def _busy(self) -> StoreError:
        return StoreError(f"{self.address}: lock wait timeout after {self.timeout:g} s")

    @contextmanager
    def _map_errors(self, suffix: str = "", *, only_disconnects: bool = False) -> Iterator[None]:
        """Map errors to StoreError; with `only_disconnects`, errors of the caller's own statements pass."""
        try:
            yield
        except NoConnectionFree:
            raise StoreError(f"{self.address}: all connections of the pool are busy; see pool_size") from None
        except DBAPIError as error:
            disconnected = isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated
            if only_disconnects and not disconnected:
                raise
            problem = str(error.orig).strip().partition("\n")[0]
            raise StoreError(f"{self.address}: {problem}{suffix}") from None


def _held(row: LockRow) -> bool:
    return bool(row.now < row.expires_us <= row.now + MAX_LEASE * 1e6)


def _is_of(row: LockRow, lease: Lease) -> bool:
    return (row.version, row.holder) == (lease.version, lease.holder)


def _is_busy(error: DBAPIError) -> bool:
    """Whether it is a conflict, or another client has just inserted the same row."""
    return isinstance(error, IntegrityError) or is_busy(error)
