"""What the store asks of a database driver: a session that runs statements by a deadline, and two ways to fail.

A driver is used for nothing but carrying text there and rows back; transactions are part of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate.stores.sql.dialect import Dialect

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["Address", "Broken", "Driver", "Refused", "Session"]


class Refused(Exception):  # noqa: N818 - says what it is
    """The database answered with an error. The session goes on; its transaction must be rolled back."""

    def __init__(self, message: str, *, again: bool = False, no_table: bool = False) -> None:
        super().__init__(message)
        self.again = again
        """Whether the same transaction may succeed if it is begun anew: a dead-lock's victim."""
        self.no_table = no_table


class Broken(Exception):  # noqa: N818 - says what it is
    """The connection was lost, cut, refused or too slow. The session is of no further use."""

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late
        """Whether it was the deadline that ended it."""


class Session:
    """One connection, used by one thread at a time."""

    def run(self, statements: Sequence[str], deadline: float) -> list[list[str]]:
        """Send all of them at once. For each that selects one column of text, its rows. Refused or Broken else."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the connection, without waiting for the other side."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Forget a connection that belongs to the process this one was forked from, which goes on using it."""
        raise NotImplementedError


class Address(NamedTuple):
    """Where a database is and who asks. Shown without the password."""

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
    """Opens sessions with one database, and says how it is to be spoken to."""

    name: str
    """What people call the database, and where it is."""
    dialect: Dialect
    own_clock: bool
    """Whether the database has a clock that all its clients share."""
    url: str = "URL"
    """The store's URL as it may be shown."""
    option: str = "--store"
    """How commands are told of it: advice names it so."""
    survives_fork: bool = True
    """Whether sessions may be open while the process forks, as long as the child leaves them alone."""
    most_sessions: int | None = None
    """How many sessions are of use; None for as many as one likes."""

    def open(self, deadline: float) -> Session:
        """A new session, set up. Broken or Refused when that is not possible by the deadline."""
        raise NotImplementedError

    def has_tables(self) -> bool:
        """Whether Headgate's tables are there already, as far as it can be seen without asking a server."""
        return False

    def silent(self, seconds: float) -> Broken:
        """Whoever listens there said nothing for so long while a session was opened."""
        kind = self.name.partition(" ")[0]
        return Broken(f"no answer in time ({seconds:.2g} s): does a {kind} server listen there?", late=True)

    def engine(self) -> Engine:
        """The same database for SQLAlchemy, which makes and changes the tables."""
        raise NotImplementedError

    def lock(self, connection: Any) -> None:
        """Have this SQLAlchemy connection wait until no other process changes the tables."""
        raise NotImplementedError

    def unlock(self, connection: Any) -> None:
        raise NotImplementedError
