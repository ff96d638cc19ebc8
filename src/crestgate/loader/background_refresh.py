"""Background thread that keeps rules or descriptors from files or a database up to date.

A failed refresh changes nothing: the previous rules stay in force, and the error is logged once and counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakMethod, ref

from crestgate.errors import CrestgateError
from crestgate.runtime.fork_safety import renew_after_fork

__all__ = ["REFRESH_SECONDS", "BackgroundRefresh", "ReloadMessages", "Reloaded", "close_all"]

REFRESH_SECONDS = 1.0
CLOSE_TIMEOUT = 5.0
"""Seconds that closing waits for a running refresh."""
_log = logging.getLogger("crestgate")

Owner = TypeVar("Owner")


class ReloadMessages(NamedTuple):
    """Log message formats; each takes the title of the source."""

    failed: str
    recovered: str
    reloaded: str = ""
    """Also takes the numbers before and after. Not needed where `load` logs its own."""


class Reloaded(NamedTuple):
    """Number of rules or descriptors before and after."""

    before: int
    after: int


class BackgroundRefresh(Generic[Owner]):
    """Calls `load(owner)` every `seconds`, and immediately after `wake`. The owner is a weak reference: the thread ends
    when this object is collected or closed. `load` applies changes and returns None if there are none."""

    def __init__(
        self,
        owner: Owner,
        load: Callable[[Owner], Reloaded | None],
        *,
        messages: ReloadMessages,
        title: str,
        seconds: float,
        thread_name: str,
    ) -> None:
        """`title` names the source in the log."""
        self.failures = 0
        """Number of failed refreshes."""
        self.problem: str | None = None
        """The error of the last refresh; None if it succeeded."""
        self.closed = False
        self._owner = ref(owner)
        self._load = load
        self._messages = messages
        self._title = title
        self._seconds = seconds
        self._thread_name = thread_name
        self.lock = Lock()
        """Held during a refresh. Replaced in a forked child."""

    def start(self) -> None:
        renew_after_fork(self)
        self._start_thread()

    def refresh(self) -> bool:
        """Refresh now; whether anything has changed."""
        with self.lock:
            owner = self._owner()
            if owner is None:
                return False
            try:
                reloaded = self._load(owner)
            except Exception as error:  # noqa: BLE001 - the previous state stays in force after any error
                if not self.closed:
                    self._failed(error)
                return False
            if self.problem is not None:
                self.problem = None
                _log.warning(self._messages.recovered, self._title)
            if reloaded is None:
                return False
            if not any(reloaded):
                return True
            level = logging.INFO if reloaded.after else logging.WARNING
            _log.log(level, self._messages.reloaded, self._title, *reloaded)
            return True

    def wake(self) -> None:
        """Refresh soon, in the thread. A signal handler may call it."""
        self._wakeups.put(None)

    def weak_wake(self) -> Callable[[], None]:
        """`wake` without a strong reference to this object."""
        method = WeakMethod(self.wake)

        def wake() -> None:
            alive = method()
            if alive is not None:
                alive()

        return wake

    def close(self) -> None:
        close_all([self])

    def renew(self) -> None:
        """In a forked child, which does not have the parent's thread."""
        self.lock = Lock()
        if not self.closed:
            self._start_thread()

    def _start_thread(self) -> None:
        self._wakeups: SimpleQueue[None] = SimpleQueue()  # the only queue that a signal handler may put to
        self.thread = Thread(
            target=_run, args=(ref(self), self._wakeups, self._seconds), name=self._thread_name, daemon=True
        )
        self.thread.start()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        expected = isinstance(error, CrestgateError)
        message = str(error) if expected else repr(error)
        if not message.startswith(self._title):
            message = f"{self._title}: {message}"
        if message != self.problem:
            self.problem = message
            _log.error(self._messages.failed, message, exc_info=None if expected else error)


def close_all(refreshes: list[BackgroundRefresh[Owner]]) -> None:
    """End the threads, and wait for them up to `CLOSE_TIMEOUT` seconds in all."""
    for refresh in refreshes:
        refresh.closed = True
        refresh.wake()
    deadline = time.monotonic() + CLOSE_TIMEOUT
    for refresh in refreshes:
        if refresh.thread is not current_thread():
            refresh.thread.join(max(deadline - time.monotonic(), 0.0))


def _run(weak: ref[BackgroundRefresh[Owner]], wakeups: SimpleQueue[None], seconds: float) -> None:
    while True:
        _wait(wakeups, seconds)
        refresh = weak()
        if refresh is None or refresh.closed:
            return
        refresh.refresh()
        del refresh


def _wait(wakeups: SimpleQueue[None], seconds: float) -> None:
    """Wait for a wake-up, or for this long; one refresh serves all wake-ups before it."""
    try:
        wakeups.get(timeout=seconds)
        while True:
            wakeups.get_nowait()
    except Empty:
        return
