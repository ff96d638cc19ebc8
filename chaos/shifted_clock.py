"""Steps of the wall clock of a client, within its own process. To be imported before anything that reads the clock.

libfaketime can do the same to any process, but each reading of any clock then waits for a semaphore: clients were late
by more than their deadline without any step. A client reads the wall clock by these two functions only.
"""

from __future__ import annotations

import time

__all__ = ["step"]

_time_ns = time.time_ns
_offset_ns = 0


def step(seconds: int) -> None:
    """Set the wall clock so many seconds ahead of the real one, or behind it. Monotonic clocks run on."""
    global _offset_ns  # noqa: PLW0603 - the clock of the process
    _offset_ns = seconds * 1_000_000_000


def _shifted_ns() -> int:
    return _time_ns() + _offset_ns


def _shifted() -> float:
    return _shifted_ns() / 1e9


time.time_ns = _shifted_ns
time.time = _shifted
