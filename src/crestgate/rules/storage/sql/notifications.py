"""LISTEN on PostgreSQL: a thread that waits for notifications of writes by other processes.

It has a connection of its own, outside of the pool, and also calls the callbacks whenever it has (re)connected: it has
missed the writes before. The thread polls the server and a socket, through which it is stopped; so it ends
immediately, unless it is connecting, which has a timeout.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from socket import socketpair
from typing import TYPE_CHECKING

from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.runtime.poll import POLLIN, create_poll
from crestgate.stores.sql.session import DatabaseConnectionError, Driver, StatementError

if TYPE_CHECKING:
    from crestgate.stores.sql.postgres import PostgresSession

__all__ = ["PostgresChangeListener"]

MIN_BACKOFF = 0.1
MAX_BACKOFF = 5.0
HEARTBEAT = 15.0
"""Seconds of silence after which the connection is checked."""
_log = logging.getLogger("crestgate")


class PostgresChangeListener:
    """Listens on one channel of a PostgreSQL database, from the first `add` on until `close`."""

    def __init__(self, driver: Driver, channel: str, timeout: float) -> None:
        self.driver = driver
        self.channel = channel
        self.timeout = timeout
        self._wakes: list[Callable[[], None]] = []
        self._lock = fork_safe_lock()
        self._thread: _ListenerThread | None = None
        self._closed = False

    def add(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._wakes.append(wake)
            if self._thread is None and not self._closed:
                self._thread = _ListenerThread(self)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            ending, self._thread = self._thread, None
        if ending is not None:
            ending.stop()

    def renew(self) -> None:
        """In a forked child: the thread and the connection are the parent's. Start a new one if there was one."""
        if self._thread is not None:
            self._thread.abandon()
            self._thread = _ListenerThread(self)

    def wake(self) -> None:
        for wake in tuple(self._wakes):
            try:
                wake()
            except Exception:  # noqa: BLE001 - a failing callback must not end the thread
                _log.exception("rule change callback failed: %s", self.driver.name)


class _ListenerThread:
    """The thread, its sockets and its connection, from its start until it is stopped or left behind by a fork."""

    def __init__(self, listener: PostgresChangeListener) -> None:
        self.listener = listener
        self.session: PostgresSession | None = None
        self.wake_reader, self.wake_writer = socketpair()
        self.thread = threading.Thread(target=self._run, name="crestgate-listen", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.wake_writer.send(b"x")
        self.wake_writer.close()
        if self.thread is not threading.current_thread():
            self.thread.join(1.0)  # it may be connecting, and ends a moment later

    def abandon(self) -> None:
        self.wake_reader.close()
        self.wake_writer.close()
        if self.session is not None:
            self.session.abandon()

    def _run(self) -> None:
        backoff, logged = MIN_BACKOFF, False
        try:
            while True:
                try:
                    self._connect()
                    backoff, logged = MIN_BACKOFF, False
                    self.listener.wake()
                    if self._wait_for_notifications():
                        return
                except (DatabaseConnectionError, StatementError, OSError) as error:
                    if not logged:
                        _log.warning(
                            "%s: rule notifications lost, polling until they are back: %s",
                            self.listener.driver.name,
                            error,
                        )
                    logged = True
                finally:
                    if self.session is not None:
                        self.session.close()
                        self.session = None
                if self._wait(None, backoff):
                    return
                backoff = min(backoff * 2, MAX_BACKOFF)
        finally:
            self.wake_reader.close()

    def _connect(self) -> None:
        from crestgate.stores.sql.postgres import PostgresSession

        deadline = time.monotonic() + self.listener.timeout
        session = self.listener.driver.open(deadline)
        assert isinstance(session, PostgresSession)
        self.session = session
        session.run([f"LISTEN {self.listener.channel}"], deadline)

    def _wait_for_notifications(self) -> bool:
        """Wait for notifications until stopped; then True."""
        session = self.session
        assert session is not None
        while not self._wait(session.connection.socket, HEARTBEAT):
            # Reads the notifications, and detects a dead connection.
            session.run(["SELECT 1"], time.monotonic() + self.listener.timeout)
            received = False
            while session.connection.notifies() is not None:
                received = True
            if received:
                self.listener.wake()
        return True

    def _wait(self, file: int | None, seconds: float) -> bool:
        """Wait for data, or so many seconds; whether it is stopped."""
        poll = create_poll()
        reader = self.wake_reader.fileno()
        poll.register(reader, POLLIN)
        if file is not None:
            poll.register(file, POLLIN)
        return any(number == reader for number, _ in poll.poll(seconds * 1000))
