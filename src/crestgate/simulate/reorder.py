"""Puts lines that are slightly out of order into the order of their times.

Servers write a line when the response ends, with the time when the request began, so neighbours may be swapped. Lines
are held back until a later one is `WINDOW_US` newer, at most `MAX_HELD` of them. A line that comes later than that is
replayed at the time of its neighbours, and counted as late.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import Final

from crestgate.simulate.logged_request import LoggedRequest

__all__ = ["MAX_HELD", "WINDOW_US", "Reorder"]

WINDOW_US: Final = 10_000_000
MAX_HELD: Final = 20_000
_time = attrgetter("time_us")


class Reorder:
    """Holds lines back. Lines with the same time keep their order."""

    def __init__(self, window_us: int = WINDOW_US, max_held: int = MAX_HELD) -> None:
        self._window_us = window_us
        self._max_held = max_held
        self._held: list[LoggedRequest] = []

    def add(self, requests: list[LoggedRequest]) -> list[LoggedRequest]:
        """Add the next lines; those that can be replayed now, in order."""
        held = self._held
        held += requests
        if not held:
            return []
        times = list(map(_time, held))
        ordered = sorted(times)
        if times != ordered:
            held.sort(key=_time)  # stable
        end = max(bisect_right(ordered, ordered[-1] - self._window_us), len(held) - self._max_held)
        self._held = held[end:]
        return held[:end]

    def flush(self) -> list[LoggedRequest]:
        """The lines that are left."""
        held, self._held = self._held, []
        return held
