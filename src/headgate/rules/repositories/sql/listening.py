"""What PostgreSQL says by itself: a thread that waits for the notifications of other processes' writes.

It has a connection of its own, outside of the pool, and wakes whoever listens each time it has begun to listen: what
was written before that, or while the connection was lost, has been missed. The thread waits for the server and for a
pipe, through which it is told to end; so it ends at once, unless it is just connecting, which is bounded.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.stores.forking import fork_safe_lock
from headgate.stores.sql.session import Broken, Driver, Refused

if TYPE_CHECKING:
    from headgate.stores.sql.postgres import PostgresSession

__all__ = ["Listener"]

FIRST_NAP = 0.1
LONGEST_NAP = 5.0
HEARTBEAT = 15.0
"""Seconds of silence after which the server is asked whether it is still there."""
_log = logging.getLogger("headgate")


class Listener:
    """Listens on one channel of a PostgreSQL database, from the first `add` on until `close`."""

    def __init__(self, driver: Driver, channel: str, timeout: float) -> None:
        self.driver = driver
        self.channel = channel
        self.timeout = timeout
        self._wakes: list[Callable[[], None]] = []
        self._turn = fork_safe_lock()
        self._round: _Round | None = None
        self._closed = False

    def add(self, wake: Callable[[], None]) -> None:
        with self._turn:
            self._wakes.append(wake)
            if self._round is None and not self._closed:
                self._round = _Round(self)

    def close(self) -> None:
        with self._turn:
            self._closed = True
            ending, self._round = self._round, None
        if ending is not None:
            ending.end()

    def renew(self) -> None:
        """In a forked child: the thread and the connection are the parent's. Listen anew if it did."""
        if self._round is not None:
            self._round.abandon()
            self._round = _Round(self)

    def wake(self) -> None:
        for wake in tuple(self._wakes):
            try:
                wake()
            except Exception:  # noqa: BLE001 - it is not ours, and must not keep us from listening on
                _log.exception("whoever listens to %s could not be woken", self.driver.name)


class _Round:
    """The thread, its pipe and its connection, between a start and an end or a fork."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.session: PostgresSession | None = None
        self.ear, self.mouth = os.pipe()
        self.thread = threading.Thread(target=self._run, name="headgate-listen", daemon=True)
        self.thread.start()

    def end(self) -> None:
        os.write(self.mouth, b"x")
        os.close(self.mouth)
        if self.thread is not threading.current_thread():
            self.thread.join(1.0)  # it may be connecting, and ends by itself a moment later

    def abandon(self) -> None:
        os.close(self.ear)
        os.close(self.mouth)
        if self.session is not None:
            self.session.abandon()

    def _run(self) -> None:
        nap, told = FIRST_NAP, False
        try:
            while True:
                try:
                    self._connect()
                    nap, told = FIRST_NAP, False
                    self.listener.wake()
                    if self._attend():
                        return
                except (Broken, Refused, OSError) as error:
                    if not told:
                        _log.warning("%s: not told of changes for now: %s", self.listener.driver.name, error)
                    told = True
                finally:
                    if self.session is not None:
                        self.session.close()
                        self.session = None
                if self._wait(None, nap):
                    return
                nap = min(nap * 2, LONGEST_NAP)
        finally:
            os.close(self.ear)

    def _connect(self) -> None:
        from headgate.stores.sql.postgres import PostgresSession

        deadline = time.monotonic() + self.listener.timeout
        session = self.listener.driver.open(deadline)
        assert isinstance(session, PostgresSession)
        self.session = session
        session.run([f"LISTEN {self.listener.channel}"], deadline)

    def _attend(self) -> bool:
        """True when it is to end. What is wrong with the connection is Broken."""
        session = self.session
        assert session is not None
        while not self._wait(session.connection.socket, HEARTBEAT):
            # Reads what has come, and finds out whether anybody is there at all.
            session.run(["SELECT 1"], time.monotonic() + self.listener.timeout)
            came = False
            while session.connection.notifies() is not None:
                came = True
            if came:
                self.listener.wake()
        return True

    def _wait(self, file: int | None, seconds: float) -> bool:
        """Until something comes or so many seconds have passed; whether it is to end."""
        poll = select.poll()
        poll.register(self.ear, select.POLLIN)
        if file is not None:
            poll.register(file, select.POLLIN)
        return any(number == self.ear for number, _ in poll.poll(seconds * 1000))
