"""How long an event loop did not run, so that such times are not taken for a slow server.

A loop stands still while a callback computes or blocks, and while the operating system runs other processes. A reply
that came meanwhile is not late, and a request that could not be sent has not waited for its server. So deadlines on a
loop are instants of the loop's own time, `time.monotonic() - lag.total`, which stands still with it.

A timer that fires late shows by how much, and the thread's processor time how much of it the loop computed. That part
counts whole if it was long, else by half: a busy loop reads replies late, but much small work must not keep its callers
waiting for ever. And it does not count as `unscheduled`: a server on the same machine could run meanwhile.

The timer runs only while the loop is used, and costs a hundred callbacks a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import final
from weakref import WeakKeyDictionary, ref

__all__ = ["LoopLag", "lag_of"]

INTERVAL = 0.01
"""Seconds between two callbacks."""
TOLERANCE = 0.005
"""Seconds that a timer may be late on a loop that runs."""
MIN_BLOCKED = 0.05
"""Seconds of computing at a time that count whole as standing still."""
MAX_IDLE = 100
"""Callbacks without any use after which it stops."""

_lags: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLag] = WeakKeyDictionary()


def lag_of(loop: asyncio.AbstractEventLoop) -> LoopLag:
    """The lag of a loop, which all its users share."""
    lag = _lags.get(loop)
    if lag is None:
        lag = _lags[loop] = LoopLag(loop)
    return lag


@final
class LoopLag:
    """The seconds that one loop did not run. To be used on that loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.total = 0.0
        """Seconds since the first use in which it stood still."""
        self.unscheduled = 0.0
        """Of these, the seconds in which it did not compute."""
        self.cpu = 0.0
        """The thread's processor time when it was last measured, within INTERVAL on a loop that is not late."""
        self.active = False
        """Whether it is being measured: else call `start`."""
        self.used = False
        """Set by whoever uses it."""
        self._loop = ref(loop)
        self._due = 0.0
        self._idle = 0

    def start(self) -> None:
        """Begin to measure, until it has not been used for a second."""
        loop = self._loop()
        if loop is not None and not self.active:
            self.active = self.used = True
            self._schedule(loop, time.monotonic())

    def now(self) -> float:
        """The loop's own time, also while the timer is late and has not been called yet."""
        now = time.monotonic()
        late = now - self._due
        if self.active and late > TOLERANCE:
            cpu = time.thread_time()
            computed = min(cpu - self.cpu, late)
            self.unscheduled += late - computed
            self.total += late if computed >= MIN_BLOCKED else late - computed / 2
            self._due, self.cpu = now, cpu
        return now - self.total

    def call_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle | None:
        """`call_later` of the loop."""
        loop = self._loop()
        return None if loop is None else loop.call_later(seconds, callback)

    def _schedule(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        self._due = now + INTERVAL
        self.cpu = time.thread_time()
        loop.call_later(INTERVAL, self._measure)

    def _measure(self) -> None:
        self.now()
        self._idle = 0 if self.used else self._idle + 1
        self.used = False
        loop = self._loop()
        if loop is None or self._idle >= MAX_IDLE:
            self.active = False
        else:
            self._schedule(loop, time.monotonic())
