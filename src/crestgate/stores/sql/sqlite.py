"""SQLite: a file that the processes of one machine share, without a server.

Transactions are short and begin with the write lock (BEGIN IMMEDIATE), so they cannot deadlock; one that finds it taken
retries soon. SQLite's own busy timeout backs off to 100 ms, which is a whole deadline.

A new file is readable by its owner only (0600), whatever the umask is: it has digests of keys and names of callers.
SQLite creates its other files (`-wal`, `-shm`) with the same mode. An existing file keeps its mode.

No connection may be open while the process forks, not even one that the child does not use: SQLite records per process
which locks it has on a file, and a child would believe that it has those of its parent.
"""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, final

from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.stores.sql.dialect import SQLITE
from crestgate.stores.sql.session import DatabaseConnectionError, Driver, Session, StatementError

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["SqliteDriver"]

MAX_NAP = 0.002
MAX_CHECKPOINT_SECONDS = 0.2
"""The last process that closes the file runs a checkpoint, which blocks even readers for that time."""
_SETUP = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL")
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_open_lock = fork_safe_lock()
"""Held while a connection is opened: a fork that waits for the open ones must not miss a new one."""
_abandoned: list[sqlite3.Connection] = []
"""Connections of a parent process. To close one here would release the parent's locks on the file."""


class BriefConnection(sqlite3.Connection):
    """A short-lived connection, which delays forks until it is closed."""

    in_use: Lock | None = None

    def close(self) -> None:
        super().close()
        in_use, self.in_use = self.in_use, None
        if in_use is not None:
            in_use.release()


@final
class SqliteSession(Session):
    """One open file."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self.connection = connection
        self.name = name

    def run(self, statements: Sequence[str], deadline: float) -> list[list[str]]:
        results = []
        for statement in statements:
            rows = self.execute(statement, deadline)
            if rows is not None:
                results.append(rows)
        return results

    def execute(self, statement: str, deadline: float) -> list[str] | None:
        """The rows of a statement that selects one column."""
        while True:
            try:
                cursor = self.connection.execute(statement)
                return None if cursor.description is None else [row[0] for row in cursor.fetchall()]
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code not in _BUSY:
                    raise StatementError(str(error), missing_table="no such table" in str(error)) from None
            # A statement that found the file locked has done nothing.
            remaining_seconds = deadline - time.monotonic()
            if remaining_seconds <= 0:
                raise DatabaseConnectionError("database is locked by another process", timed_out=True)
            time.sleep(min(random.random() * MAX_NAP, remaining_seconds))  # noqa: S311 - jitter, no secret

    def close(self) -> None:
        self.connection.close()

    def abandon(self) -> None:
        _abandoned.append(self.connection)


@final
class SqliteDriver(Driver):
    """The database in one file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = f"SQLite file {path}"
        self.dialect = SQLITE
        self.own_clock = False
        self.survives_fork = False
        self.max_sessions = 1  # there is only one writer at a time

    def connect(self) -> sqlite3.Connection:
        create_private(self.path)
        return sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)

    def connect_briefly(self) -> sqlite3.Connection:
        """A short-lived connection: a fork waits until it is closed."""
        create_private(self.path)
        with _open_lock:
            in_use = fork_safe_lock()
            in_use.acquire()
            try:
                connection = sqlite3.connect(
                    self.path,
                    timeout=MAX_CHECKPOINT_SECONDS,
                    isolation_level=None,
                    check_same_thread=False,
                    factory=BriefConnection,
                )
            except BaseException:
                in_use.release()
                raise
        connection.in_use = in_use
        return connection

    def has_tables(self) -> bool:
        """Creates no file. Other errors are reported when it is opened."""
        if not os.path.exists(self.path):
            return False
        try:
            with closing(self.connect()) as connection:
                connection.execute("SELECT 1 FROM crestgate_version")
        except sqlite3.Error as error:
            return "no such table" not in str(error)
        return True

    def open(self, deadline: float) -> Session:
        try:
            session = SqliteSession(self.connect(), self.name)
        except sqlite3.Error as error:
            raise DatabaseConnectionError(str(error)) from None
        try:
            session.run(_SETUP, deadline)
        except (DatabaseConnectionError, StatementError):
            session.close()
            raise
        return session

    def engine(self) -> Engine:
        from sqlalchemy import create_engine

        return create_engine("sqlite://", creator=self.connect)

    def lock(self, connection: Any) -> None:
        """The tables are created in one transaction, which begins with the write lock."""
        connection.exec_driver_sql("PRAGMA busy_timeout = 10000")
        connection.exec_driver_sql("BEGIN EXCLUSIVE")

    def unlock(self, connection: Any) -> None:
        """Released by the end of the transaction."""


def create_private(path: str) -> None:
    """Create an empty file with mode 0600, if there is none. Errors are left to SQLite.

    It is created under a temporary name and linked: to close a file that SQLite has open in another thread would
    release that thread's locks on it.
    """
    if os.path.exists(path):
        return
    with suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(prefix=".crestgate-", dir=os.path.dirname(path) or ".")  # 0600
        os.close(descriptor)
        try:
            os.link(temporary, path)
        finally:
            os.unlink(temporary)
