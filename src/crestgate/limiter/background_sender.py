"""Sends the give-backs of requests that were answered already, so that no caller waits for them beyond its deadline.

When one server of several fails and the failure policy denies a request, what the others have charged for it is given
back. The caller has its answer by then, and perhaps no time left. So one thread, which exists only while there is
something to send, does it. What cannot be sent is counted as a failure of the store: the charge stays.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Thread
from typing import final

from crestgate.errors import StoreError
from crestgate.runtime.fork_safety import renew_after_fork
from crestgate.stores.port import BatchOutcomes, Request

__all__ = ["MAX_PENDING", "BackgroundSender"]

MAX_PENDING = 1000
"""Requests that wait to be sent. Further ones are lost, which is counted."""


@final
class BackgroundSender:
    """The give-backs of one limiter. `lost` is called with the error and the number of requests."""

    def __init__(
        self, apply: Callable[[Sequence[Request]], BatchOutcomes], lost: Callable[[StoreError, int], None]
    ) -> None:
        self._apply = apply
        self._lost = lost
        self._pending: deque[Request] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: the parent sends them."""
        self._pending.clear()
        self._changed = Condition()
        self._thread = None

    def send(self, requests: Sequence[Request]) -> None:
        """Send requests soon; does not wait."""
        problem: StoreError | None = None
        with self._changed:
            if len(self._pending) + len(requests) > MAX_PENDING:
                problem = StoreError(f"more than {MAX_PENDING:,} give-backs are waiting to be sent")
            else:
                self._pending.extend(requests)
                try:
                    if self._thread is None:
                        self._thread = Thread(target=self._run, name="crestgate-give-back", daemon=True)
                        self._thread.start()
                except RuntimeError as error:  # the interpreter is shutting down
                    self._pending.clear()
                    self._thread = None
                    problem = StoreError(f"no thread for a give-back: {error}")
        if problem is not None:
            self._lost(problem, len(requests))

    def wait(self, deadline: float) -> bool:
        """Wait until all were sent; returns whether they were by the deadline."""
        with self._changed:
            while self._thread is not None:
                seconds = deadline - time.monotonic()
                if seconds <= 0:
                    return False
                self._changed.wait(seconds)
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                batch = list(self._pending)
                self._pending.clear()
                if not batch:
                    self._thread = None
                    self._changed.notify_all()
                    return
            try:
                self._apply(batch)
            except StoreError as error:
                self._lost(error, len(batch))
            except Exception as error:  # noqa: BLE001 - the thread must go on, and the loss be known
                self._lost(StoreError(f"a give-back failed: {error!r}"), len(batch))
