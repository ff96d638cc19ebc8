"""Connection pool of a SQL store, shared by all threads of a process.

A free slot has an idle session, or none: then whoever takes the slot opens one. A session that failed is closed and
leaves its slot empty. Where no session may be open while the process forks (SQLite), a fork waits for the one that is
in use, and idle ones are closed.
"""

from __future__ import annotations

import logging
import time
from queue import Empty, LifoQueue
from typing import final

from crestgate.runtime.fork_safety import call_before_fork, fork_safe_lock, renew_after_fork
from crestgate.stores.sql.session import DatabaseConnectionError, Driver, Session, StatementError

__all__ = ["PoolBusyError", "SessionPool"]

_log = logging.getLogger("crestgate")


@final
class PoolBusyError(DatabaseConnectionError):
    """All sessions are in use. Not an error of the server."""


@final
class SessionPool:
    """At most `size` sessions, last used first, so that the others stay idle."""

    def __init__(self, driver: Driver, size: int) -> None:
        self.driver = driver
        self.size = size
        self.closed = False
        self.sessions: set[Session] = set()
        self.slots: LifoQueue[Session | None] = LifoQueue()
        self.fill()
        self.fork_lock = None if driver.survives_fork else fork_safe_lock()
        """Held while a session is in use, one at a time, if the process must not fork meanwhile."""
        renew_after_fork(self)
        if self.fork_lock is not None:
            call_before_fork(self)

    def fill(self) -> None:
        for _ in range(self.size):
            self.slots.put(None)

    def take(self, deadline: float) -> tuple[Session, bool]:
        """A session, and whether it is new; to be given back or dropped. PoolBusyError if none is free in time."""
        if self.fork_lock is not None and not self.fork_lock.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            raise _busy_error()
        try:
            return self.take_slot(deadline)
        except BaseException:
            self.allow_fork()
            raise

    def take_slot(self, deadline: float) -> tuple[Session, bool]:
        remaining_seconds = deadline - time.monotonic()
        try:
            slot = self.slots.get(timeout=remaining_seconds) if remaining_seconds > 0 else self.slots.get_nowait()
        except Empty:
            raise _busy_error() from None
        if slot is not None:
            return slot, False
        try:
            session = self.driver.open(deadline)
        except BaseException:
            self.slots.put(None)
            raise
        self.sessions.add(session)
        return session, True

    def allow_fork(self) -> None:
        """The session is no longer in use."""
        if self.fork_lock is not None:
            self.fork_lock.release()

    def warm(self, count: int, deadline: float) -> None:
        """Open so many sessions, if possible; errors are left to the requests that need them."""
        taken: list[Session] = []
        try:
            while len(taken) < count:
                taken.append(self.take(deadline)[0])
        except (DatabaseConnectionError, StatementError) as error:
            _log.debug("%s: opened %d connections of %d: %s", self.driver.name, len(taken), count, error)
        for session in taken:
            self.give(session)

    def give(self, session: Session) -> None:
        if self.closed:
            self.drop(session)
            return
        if session in self.sessions:
            self.slots.put(session)
        self.allow_fork()

    def drop(self, session: Session) -> None:
        """Close a session after an error."""
        if session in self.sessions:
            self.sessions.discard(session)
            session.close()
            self.slots.put(None)
        self.allow_fork()

    def replace(self, session: Session, deadline: float) -> Session:
        """A new session in place of one whose connection was dead."""
        self.sessions.discard(session)
        session.close()
        try:
            new = self.driver.open(deadline)
        except BaseException:
            self.slots.put(None)
            self.allow_fork()
            raise
        self.sessions.add(new)
        return new

    def close(self) -> None:
        """Close the idle sessions; those in use are closed when they are given back."""
        self.closed = True
        self.close_idle()

    def before_fork(self) -> None:
        """Before a fork: nobody has a session, unless it is kept for longer than a fork waits."""
        self.close_idle()

    def close_idle(self) -> None:
        emptied = 0
        try:
            while True:
                session = self.slots.get_nowait()
                emptied += 1
                if session is not None:
                    self.sessions.discard(session)
                    session.close()
        except Empty:
            for _ in range(emptied):
                self.slots.put(None)

    def renew(self) -> None:
        """In a forked child: the sessions belong to the parent, which still uses them."""
        for session in self.sessions:
            session.abandon()
        self.sessions = set()
        self.slots = LifoQueue()
        self.fill()


def _busy_error() -> PoolBusyError:
    return PoolBusyError("all connections are busy", timed_out=True)
