"""The driver interface of the SQL store: sessions that run statements by a deadline, and their errors.

A driver only sends statements and returns rows; transactions are part of the statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from crestgate.stores.sql.dialect import Dialect

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["DatabaseAddress", "DatabaseConnectionError", "Driver", "Session", "StatementError"]


class StatementError(Exception):
    """The database returned an error. The session stays usable; its transaction must be rolled back."""

    def __init__(
        self, message: str, *, retryable: bool = False, missing_table: bool = False, lock_timeout: bool = False
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        """Whether the same transaction may succeed if it is repeated: the victim of a deadlock."""
        self.missing_table = missing_table
        self.lock_timeout = lock_timeout
        """Whether a lock was not granted within the time that the session waits for one."""


class DatabaseConnectionError(Exception):
    """The connection was lost, refused or too slow. The session is no longer usable, unless `read_only`."""

    def __init__(self, message: str, *, timed_out: bool = False, read_only: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        """Whether the deadline was exceeded."""
        self.read_only = read_only
        """Whether the server accepts no writes: a primary that was replaced, and a new connection may reach the new
        one; or it will accept them again, over this connection too."""


class Session:
    """One connection, used by one thread at a time."""

    def run(self, statements: Sequence[str], deadline: float) -> list[list[str]]:
        """Send all statements at once. Returns, for each that selects one column of text, its rows."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection, without waiting for the server."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Drop a connection that belongs to the parent process, which still uses it."""
        raise NotImplementedError


class DatabaseAddress(NamedTuple):
    """Where a database is, and the credentials. `repr` has no password."""

    host: str
    port: int
    user: str | None
    password: str | None
    database: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"Address({self.shown()!r})"

    def shown(self) -> str:
        if "unix_socket" in self.options:
            return f"{self.options['unix_socket']}, database {self.database}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{self.database}"


class Driver:
    """Opens sessions with one database, and has its dialect."""

    name: str
    """Name and address of the database, for messages."""
    dialect: Dialect
    own_clock: bool
    """Whether the database has a clock that all its clients share."""
    url: str = "URL"
    """The store's URL without its password."""
    option: str = "--store"
    """The command line option of the URL, for hints in messages."""
    survives_fork: bool = True
    """Whether sessions may be open while the process forks, if the child does not use them."""
    opens_in_background: bool = False
    """Whether a session may be opened by another thread than those that use it."""
    max_sessions: int | None = None
    """How many sessions are useful; None for no limit."""
    min_shared_batch: int = 500
    """Requests up to this number are sent as one batch rather than divided among several."""

    def open(self, deadline: float) -> Session:
        """A new session. DatabaseConnectionError or StatementError when it cannot be opened by the deadline."""
        raise NotImplementedError

    def has_tables(self) -> bool:
        """Whether Crestgate's tables exist, as far as that can be known without a connection to a server."""
        return False

    def no_answer(self, seconds: float) -> DatabaseConnectionError:
        """The error when nothing was received for so long while a session was opened."""
        kind = self.name.partition(" ")[0]
        return DatabaseConnectionError(
            f"no answer in time ({seconds:.2g} s): does a {kind} server listen there?", timed_out=True
        )

    def engine(self) -> Engine:
        """A SQLAlchemy engine of the same database, which creates and migrates the tables."""
        raise NotImplementedError

    def lock(self, connection: Any) -> None:
        """Wait until no other process migrates the tables, and keep others from it."""
        raise NotImplementedError

    def unlock(self, connection: Any) -> None:
        raise NotImplementedError
