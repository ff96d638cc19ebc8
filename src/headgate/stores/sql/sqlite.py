"""SQLite: a file that the processes of one machine share, without a server.

Transactions are short and begin with the write lock (BEGIN IMMEDIATE), so they cannot dead-lock; whoever finds it
taken asks again soon. SQLite's own waiting backs off to a tenth of a second, which is a whole deadline.

A new file is for its owner alone (0600), whatever the umask says: there are digests of keys and callers' names in it.
SQLite gives the files that it makes beside it (`-wal`, `-shm`) the same mode. A file that is there keeps its mode:
whoever has opened it to a group means that.

No connection may be carried across a fork, not even one that the child leaves alone: SQLite remembers by process which
locks it has on a file, and a child would believe that it has those of its parent. So none is open while one forks.
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

from headgate.stores.forking import fork_safe_lock
from headgate.stores.sql.dialect import SQLITE
from headgate.stores.sql.session import Broken, Driver, Refused, Session

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["SqliteDriver"]

LONGEST_NAP = 0.002
LONGEST_TIDYING = 0.2
"""Seconds. The last process to close the file tidies up, and keeps even readers out for that moment."""
_SETUP = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL")
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_opening = fork_safe_lock()
"""Held by whoever opens one: a fork that has begun to wait for those that are open must not meet another."""
_abandoned: list[sqlite3.Connection] = []
"""Connections of a parent process. Closing one here would let go of the parent's locks on the file."""


class MomentaryConnection(sqlite3.Connection):
    """One that is closed soon, and holds up forks until then."""

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
        answers = []
        for statement in statements:
            rows = self.execute(statement, deadline)
            if rows is not None:
                answers.append(rows)
        return answers

    def execute(self, statement: str, deadline: float) -> list[str] | None:
        """The rows of a statement that selects one column."""
        while True:
            try:
                cursor = self.connection.execute(statement)
                return None if cursor.description is None else [row[0] for row in cursor.fetchall()]
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code not in _BUSY:
                    raise Refused(str(error), no_table="no such table" in str(error)) from None
            # A statement that found the file locked has done nothing.
            left = deadline - time.monotonic()
            if left <= 0:
                raise Broken("another process kept it locked for too long", late=True)
            time.sleep(min(random.random() * LONGEST_NAP, left))  # noqa: S311 - no secret, just not all at once

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
        self.most_sessions = 1  # there is one writer at a time anyway

    def connect(self) -> sqlite3.Connection:
        make_private(self.path)
        return sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)

    def connect_for_a_moment(self) -> sqlite3.Connection:
        """A connection that a fork waits for until it is closed."""
        make_private(self.path)
        with _opening:
            in_use = fork_safe_lock()
            in_use.acquire()
            try:
                connection = sqlite3.connect(
                    self.path,
                    timeout=LONGEST_TIDYING,
                    isolation_level=None,
                    check_same_thread=False,
                    factory=MomentaryConnection,
                )
            except BaseException:
                in_use.release()
                raise
        connection.in_use = in_use
        return connection

    def has_tables(self) -> bool:
        """Creates no file. What else is wrong with it shows when it is opened."""
        if not os.path.exists(self.path):
            return False
        try:
            with closing(self.connect()) as connection:
                connection.execute("SELECT 1 FROM headgate_version")
        except sqlite3.Error as error:
            return "no such table" not in str(error)
        return True

    def open(self, deadline: float) -> Session:
        try:
            session = SqliteSession(self.connect(), self.name)
        except sqlite3.Error as error:
            raise Broken(str(error)) from None
        try:
            session.run(_SETUP, deadline)
        except (Broken, Refused):
            session.close()
            raise
        return session

    def engine(self) -> Engine:
        from sqlalchemy import create_engine

        return create_engine("sqlite://", creator=self.connect)

    def lock(self, connection: Any) -> None:
        """The tables are made in one transaction, which begins with the write lock."""
        connection.exec_driver_sql("PRAGMA busy_timeout = 10000")
        connection.exec_driver_sql("BEGIN EXCLUSIVE")

    def unlock(self, connection: Any) -> None:
        """The end of the transaction has done it."""


def make_private(path: str) -> None:
    """Make an empty database for its owner alone, if there is no file yet. What goes wrong, SQLite says itself.

    The file is made under another name and linked: closing a file that SQLite has open in another thread would let go
    of that thread's locks on it.
    """
    if os.path.exists(path):
        return
    with suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(prefix=".headgate-", dir=os.path.dirname(path) or ".")  # 0600
        os.close(descriptor)
        try:
            os.link(temporary, path)
        finally:
            os.unlink(temporary)
