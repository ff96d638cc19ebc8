"""SQL transactions that are retried on lock conflicts, with StoreError for all other errors.

A write begins by locking the one row of its prefix, so writers are serialised and cannot deadlock with each other.
(They may with writers of neighbouring prefixes, over an index; then the victim is retried.) The row lock is polled
(NOWAIT), not waited for in the database, so that every wait ends by its timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from crestgate.databases.engines import is_busy
from crestgate.errors import StoreError
from crestgate.runtime.backoff import poll

__all__ = ["SqlConflictError", "Transactions"]

T = TypeVar("T")
_SNAPSHOTS = {
    "sqlite": "BEGIN",
    "mysql": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "postgresql": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
}

_READ_ONLY = {"25006", 1290, 1792, 1836}
"""PostgreSQL, MariaDB and MySQL: a read-only server, as after a failover; new connections may reach the primary."""


class SqlConflictError(Exception):
    """Conflict with another transaction: retry."""


class Transactions:
    """Runs transactions on an engine, each within `timeout` seconds. `title` is for messages."""

    def __init__(self, engine: Engine, title: str, timeout: float) -> None:
        self.engine = engine
        self.title = title
        self.timeout = timeout

    def read(self, action: Callable[[Connection], T]) -> T:
        """Nothing that `action` does is committed."""

        def attempt() -> T:
            with self.engine.connect() as connection:
                return action(connection)

        return self._retry_conflicts(attempt)

    def snapshot(self, connection: Connection) -> None:
        """Begin a transaction that sees one snapshot."""
        connection.rollback()
        connection.exec_driver_sql(_SNAPSHOTS[connection.dialect.name])

    def write(self, action: Callable[[Connection], T]) -> T:
        """All that `action` does is committed when it returns, or nothing of it."""

        def attempt() -> T:
            with self.engine.connect() as connection:  # which rolls back what was not committed
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                result = action(connection)
                self._commit(connection)
                return result

        return self._retry_conflicts(attempt)

    def _commit(self, connection: Connection) -> None:
        with self._map_errors("; the outcome of the write is unknown"):
            try:
                connection.commit()
            except DBAPIError:
                connection.invalidate()  # its state is unknown
                raise

    def _retry_conflicts(self, attempt: Callable[[], T]) -> T:
        def try_once() -> tuple[T] | None:
            try:
                with self._map_errors():
                    return (attempt(),)
            except (DBAPIError, SqlConflictError):
                return None

        result = poll(try_once, self.timeout)
        if result is None:
            raise StoreError(f"{self.title}: lock wait timeout after {self.timeout:g} s")
        return result[0]

    @contextmanager
    def _map_errors(self, suffix: str = "") -> Iterator[None]:
        """Map SQLAlchemy's errors to StoreError with the database's message, except lock conflicts."""
        try:
            yield
        except NoConnectionFree:
            raise StoreError(f"{self.title}: all connections of the pool are busy; see pool_size") from None
        except SQLAlchemyError as error:
            if isinstance(error, DBAPIError) and is_busy(error):
                raise  # its transaction was rolled back
            if not _READ_ONLY.isdisjoint(_codes(error)):
                self.engine.dispose()
            raise StoreError(f"{self.title}: {_message(error)}{suffix}") from None


def _codes(error: SQLAlchemyError) -> set[object]:
    cause = getattr(error, "orig", None)
    return {getattr(cause, "sqlstate", None), *(cause.args[:1] if cause is not None else ())}


def _message(error: SQLAlchemyError) -> str:
    cause = getattr(error, "orig", None) or error
    message = cause.args[1] if len(cause.args) > 1 else cause  # PyMySQL's arguments: number and message
    return str(message).strip().partition("\n")[0]
