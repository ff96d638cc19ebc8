"""Times when this process was not scheduled. A deadline missed in such a time is not a fault of Crestgate."""

from __future__ import annotations

import time
from itertools import chain
from threading import Event, Thread
from types import TracebackType

__all__ = ["Stalls"]

INTERVAL = 0.01
"""Seconds."""


class Stalls:
    """A thread that wakes at a fixed interval and records when it woke late."""

    def __init__(self) -> None:
        self._stop = Event()
        self._stalls: list[tuple[float, float]] = []
        self._last = time.monotonic()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def within(self, start: float, end: float) -> float:
        """The seconds of stalls between two times of `time.monotonic`."""
        seconds = 0.0
        for at, to in chain(self._late(time.monotonic()), reversed(self._stalls)):  # the last may not be recorded yet
            if to <= start:
                break
            seconds += max(min(end, to) - max(start, at), 0.0)
        return seconds

    def longest(self) -> float:
        """The longest stall so far, in seconds."""
        return max((to - at for at, to in chain(self._late(time.monotonic()), self._stalls)), default=0.0)

    def without(self, start: float, end: float) -> float:
        """The seconds between two times, without stalls."""
        return end - start - self.within(start, end)

    def _run(self) -> None:
        self._last = time.monotonic()
        while not self._stop.wait(INTERVAL):
            now = time.monotonic()
            self._stalls += self._late(now)
            self._last = now

    def _late(self, now: float) -> list[tuple[float, float]]:
        return [(self._last, now)] if now - self._last > 3 * INTERVAL else []
