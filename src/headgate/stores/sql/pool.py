"""A few connections that all threads of a process share.

A pool holds places. A place is free with a session in it, or free and empty: then whoever takes it opens one. A
session that broke is closed and leaves its place empty. Where none may be open while the process forks (SQLite), a
fork waits for the one that is in use, and those that rest are closed.
"""

from __future__ import annotations

import logging
import time
from queue import Empty, LifoQueue
from typing import final

from headgate.stores.forking import fork_safe_lock, part_before_fork, renew_after_fork
from headgate.stores.sql.session import Broken, Driver, Refused, Session

__all__ = ["Busy", "Pool"]

_log = logging.getLogger("headgate")


@final
class Busy(Broken):
    """All sessions are in use: which says nothing about the server."""


@final
class Pool:
    """At most `size` sessions. Used most recently first, so that the others may rest."""

    def __init__(self, driver: Driver, size: int) -> None:
        self.driver = driver
        self.size = size
        self.closed = False
        self.sessions: set[Session] = set()
        self.places: LifoQueue[Session | None] = LifoQueue()
        self.fill()
        self.forking = None if driver.survives_fork else fork_safe_lock()
        """Held by whoever has a session, one at a time, if no fork may come meanwhile."""
        renew_after_fork(self)
        if self.forking is not None:
            part_before_fork(self)

    def fill(self) -> None:
        for _ in range(self.size):
            self.places.put(None)

    def take(self, deadline: float) -> tuple[Session, bool]:
        """A session, and whether it is new. Give it back, or drop it. Busy when none is free by the deadline."""
        if self.forking is not None and not self.forking.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            raise _busy()
        try:
            return self.take_place(deadline)
        except BaseException:
            self.let_fork()
            raise

    def take_place(self, deadline: float) -> tuple[Session, bool]:
        left = deadline - time.monotonic()
        try:
            place = self.places.get(timeout=left) if left > 0 else self.places.get_nowait()
        except Empty:
            raise _busy() from None
        if place is not None:
            return place, False
        try:
            session = self.driver.open(deadline)
        except BaseException:
            self.places.put(None)
            raise
        self.sessions.add(session)
        return session, True

    def let_fork(self) -> None:
        """The session that was taken is no longer in use."""
        if self.forking is not None:
            self.forking.release()

    def warm(self, count: int, deadline: float) -> None:
        """Have so many sessions open, if that can be had; one that cannot is the business of whoever needs it."""
        taken: list[Session] = []
        try:
            while len(taken) < count:
                taken.append(self.take(deadline)[0])
        except (Broken, Refused) as error:
            _log.debug("%s: %d connections of %d: %s", self.driver.name, len(taken), count, error)
        for session in taken:
            self.give(session)

    def give(self, session: Session) -> None:
        if self.closed:
            self.drop(session)
            return
        if session in self.sessions:
            self.places.put(session)
        self.let_fork()

    def drop(self, session: Session) -> None:
        """Close a session whose conversation broke off."""
        if session in self.sessions:
            self.sessions.discard(session)
            session.close()
            self.places.put(None)
        self.let_fork()

    def replace(self, session: Session, deadline: float) -> Session:
        """A new session in the place of one that was found dead."""
        self.sessions.discard(session)
        session.close()
        try:
            new = self.driver.open(deadline)
        except BaseException:
            self.places.put(None)
            self.let_fork()
            raise
        self.sessions.add(new)
        return new

    def close(self) -> None:
        """Close the sessions that rest; those at work are closed when they are given back."""
        self.closed = True
        self.close_resting()

    def part(self) -> None:
        """Before a fork: nobody has a session, unless it is kept for longer than a fork waits."""
        self.close_resting()

    def close_resting(self) -> None:
        places = 0
        try:
            while True:
                session = self.places.get_nowait()
                places += 1
                if session is not None:
                    self.sessions.discard(session)
                    session.close()
        except Empty:
            for _ in range(places):
                self.places.put(None)

    def renew(self) -> None:
        """In a forked child: the sessions are the parent's, which goes on using them."""
        for session in self.sessions:
            session.abandon()
        self.sessions = set()
        self.places = LifoQueue()
        self.fill()


def _busy() -> Busy:
    return Busy("all connections are busy", late=True)
