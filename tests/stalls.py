"""When the machine did not let this process run: nobody keeps a deadline then, and no test may say so of Crestgate."""

from __future__ import annotations

import time
from threading import Event, Thread
from types import TracebackType

__all__ = ["Stalls"]

LOOK_EVERY = 0.01
"""Seconds."""


class Stalls:
    """Looks all the time, from a thread that needs next to nothing, whether it is let look as often as it wants."""

    def __init__(self) -> None:
        self._over = Event()
        self._seen: list[tuple[float, float]] = []
        self._last = time.monotonic()
        self._looking = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Stalls:
        self._looking.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._looking.join()

    def within(self, start: float, end: float) -> float:
        """How many seconds were lost between two moments of `time.monotonic`."""
        seen = [*self._seen, *self._late(time.monotonic())]  # the last may be over, and not looked at yet
        return sum(min(end, to) - max(start, at) for at, to in seen if at < end and to > start)

    def without(self, start: float, end: float) -> float:
        """How many seconds passed between two moments, without those that were lost."""
        return end - start - self.within(start, end)

    def _look(self) -> None:
        self._last = time.monotonic()
        while not self._over.wait(LOOK_EVERY):
            now = time.monotonic()
            self._seen += self._late(now)
            self._last = now

    def _late(self, now: float) -> list[tuple[float, float]]:
        return [(self._last, now)] if now - self._last > 3 * LOOK_EVERY else []
