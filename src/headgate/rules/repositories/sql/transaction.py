"""Transactions on the tables of rules: begun anew while somebody else is in the way, and their errors made ours.

A write begins by locking the one row of its prefix, so writers come one after another and cannot dead-lock with each
other. (They may with writers of neighbouring prefixes, over an index; then the victim is begun anew.) The row is not
waited for in the database (NOWAIT) but asked for again, so that every wait ends when it was said to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from headgate.errors import StoreError
from headgate.locks.databases import is_busy
from headgate.locks.polling import poll

__all__ = ["Again", "Transactions"]

T = TypeVar("T")
_SNAPSHOTS = {
    "sqlite": "BEGIN",
    "mysql": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "postgresql": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
}

_READ_ONLY = {"25006", 1290, 1792, 1836}
"""PostgreSQL, MariaDB and MySQL: a primary that was replaced. New connections may lead to the new one."""


class Again(Exception):  # noqa: N818 - says what it is
    """Somebody else came first: begin anew."""


class Transactions:
    """Runs whole transactions on an engine, each within `timeout` seconds. `title` is for messages."""

    def __init__(self, engine: Engine, title: str, timeout: float) -> None:
        self.engine = engine
        self.title = title
        self.timeout = timeout

    def read(self, action: Callable[[Connection], T]) -> T:
        """Nothing that `action` does is committed."""

        def attempt() -> T:
            with self.engine.connect() as connection:
                return action(connection)

        return self._until_alone(attempt)

    def snapshot(self, connection: Connection) -> None:
        """End what this connection has read so far, and have it see one instant from now on."""
        connection.rollback()
        connection.exec_driver_sql(_SNAPSHOTS[connection.dialect.name])

    def write(self, action: Callable[[Connection], T]) -> T:
        """What `action` does is committed when it returns, or else nothing of it."""

        def attempt() -> T:
            with self.engine.connect() as connection:  # which rolls back what was not committed
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                answer = action(connection)
                self._commit(connection)
                return answer

        return self._until_alone(attempt)

    def _commit(self, connection: Connection) -> None:
        with self._ours("; whether it has written is not known"):
            try:
                connection.commit()
            except DBAPIError:
                connection.invalidate()  # nobody is to find out what state it is in
                raise

    def _until_alone(self, attempt: Callable[[], T]) -> T:
        def one_try() -> tuple[T] | None:
            try:
                with self._ours():
                    return (attempt(),)
            except (DBAPIError, Again):
                return None

        answer = poll(one_try, self.timeout)
        if answer is None:
            raise StoreError(f"{self.title}: a transaction of somebody else was in the way for {self.timeout:g} s")
        return answer[0]

    @contextmanager
    def _ours(self, doubt: str = "") -> Iterator[None]:
        """Errors of the database become ours, with its own words; except that somebody is in the way."""
        try:
            yield
        except NoConnectionFree:
            raise StoreError(f"{self.title}: all connections of the pool are busy; see pool_size") from None
        except SQLAlchemyError as error:
            if isinstance(error, DBAPIError) and is_busy(error):
                raise  # its transaction was rolled back, whatever it was about
            if not _READ_ONLY.isdisjoint(_codes(error)):
                self.engine.dispose()
            raise StoreError(f"{self.title}: {_words(error)}{doubt}") from None


def _codes(error: SQLAlchemyError) -> set[object]:
    cause = getattr(error, "orig", None)
    return {getattr(cause, "sqlstate", None), *(cause.args[:1] if cause is not None else ())}


def _words(error: SQLAlchemyError) -> str:
    cause = getattr(error, "orig", None) or error
    words = cause.args[1] if len(cause.args) > 1 else cause  # PyMySQL's number and words
    return str(words).strip().partition("\n")[0]
