"""Connection pool of a SQL store, shared by all threads of a process.

A free slot has an idle session, or none: then whoever takes the slot opens one; those with a session are taken first. A
session that failed is closed and leaves its slot empty. Where no session may be open while the process forks (SQLite),
a fork waits for the one that is in use, and idle ones are closed.

A thread opens a session, and the caller waits for it until its deadline. If the caller has to leave, the session is for
the next one. Otherwise a server that is slow to accept connections, because all clients come back to it after a fault,
would be asked for new ones again and again, and none would ever be used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from queue import Empty, LifoQueue
from threading import Event, Lock, Thread
from typing import final

from crestgate.runtime.fork_safety import call_before_fork, fork_safe_lock, renew_after_fork
from crestgate.stores.sql.session import DatabaseConnectionError, Driver, Session, StatementError

__all__ = ["PoolBusyError", "SessionPool"]

OPEN_SECONDS = 0.5
"""Time to open a session, if its caller has less. Not much more: if the first packet of a connection was lost, it is
repeated only after a second, and a new connection is faster."""
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
        self.on_late_session: Callable[[], None] | None = None
        """Called when a session is open whose caller has left: the server responds."""
        self.sessions: set[Session] = set()
        self.slots: LifoQueue[Session | None] = _Slots()
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
        return self.open(deadline), True

    def open(self, deadline: float) -> Session:
        """A new session for a slot that was taken. If it fails the slot is free again; if it is late, as soon as it is
        open."""
        opening = self.start_opening(deadline) if self.driver.opens_in_background else None
        if opening is not None:
            session = opening.wait(deadline)
        else:
            try:
                session = self.driver.open(deadline)
            except BaseException:
                self.slots.put(None)
                raise
        self.sessions.add(session)
        return session

    def start_opening(self, deadline: float) -> _Opening | None:
        """None if there can be no more threads."""
        opening = _Opening(self, max(deadline, time.monotonic() + OPEN_SECONDS))
        try:
            Thread(target=opening.run, name="crestgate connect", daemon=True).start()
        except RuntimeError:
            return None
        return opening

    def add_late(self, session: Session | None) -> None:
        """A session whose caller has left, or None if it could not be opened."""
        if session is not None:
            self.sessions.add(session)
        self.slots.put(session)
        if self.closed:
            self.close_idle()
        elif session is not None and self.on_late_session is not None:
            self.on_late_session()

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
            return self.open(deadline)
        except BaseException:
            self.allow_fork()
            raise

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
        self.slots = _Slots()
        self.fill()


@final
class _Slots(LifoQueue[Session | None]):
    """Empty slots come last."""

    def _put(self, item: Session | None) -> None:
        self.queue.insert(0 if item is None else len(self.queue), item)


@final
class _Opening:
    """One session that a thread opens, and the caller that waits for it. Its slot is given back here."""

    def __init__(self, pool: SessionPool, deadline: float) -> None:
        self.pool = pool
        self.deadline = deadline
        self.lock = Lock()
        self.done = Event()
        self.is_left = False
        """Whether the caller has stopped waiting."""
        self.session: Session | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """In the thread."""
        try:
            self.session = self.pool.driver.open(self.deadline)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller must get it
            self.error = error
        with self.lock:
            self.done.set()
            is_left = self.is_left
        if is_left:
            self.pool.add_late(self.session)

    def wait(self, deadline: float) -> Session:
        """The session, or the error of opening it; that it is not there yet, for example."""
        seconds = max(deadline - time.monotonic(), 0.0)
        try:
            self.done.wait(seconds)
        except BaseException:  # interrupted
            if not self.leave():
                self.pool.add_late(self.session)
            raise
        if self.leave():
            raise self.pool.driver.no_answer(seconds)
        if self.session is None:
            self.pool.slots.put(None)
            assert self.error is not None
            raise self.error
        return self.session

    def leave(self) -> bool:
        """Stop to wait. Whether the session is not there yet: then it is for others."""
        with self.lock:
            self.is_left = not self.done.is_set()
            return self.is_left


def _busy_error() -> PoolBusyError:
    return PoolBusyError("all connections are busy", timed_out=True)
