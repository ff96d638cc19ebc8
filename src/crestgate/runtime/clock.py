# mypyc: compile
"""The machine's clock: monotonic, anchored to the wall once, in whole microseconds.

Fixed windows are aligned to the epoch, so a store needs wall-clock time; but the wall clock jumps when somebody sets
it, and a counter must not. So the wall clock is read once, and the monotonic clock continues from there.
"""

from __future__ import annotations

import time
from typing import Protocol, final

__all__ = ["Clock", "MachineClock", "nanoseconds_of", "wall_minus_monotonic"]


class Clock(Protocol):
    """The clock of a store; tests pass a virtual one (see `crestgate.testing.FakeClock`)."""

    def ticks(self) -> int:
        """Now, in whole microseconds since the epoch."""

    def wait(self, seconds: float) -> float:
        """The real seconds to sleep for a wait of so many seconds (a virtual clock moves on instead)."""


def wall_minus_monotonic() -> int:
    """Microseconds to add to the monotonic clock to get wall-clock time."""
    return (time.time_ns() - time.monotonic_ns()) // 1000


def nanoseconds_of(clock: Clock) -> int:
    """A clock's time in nanoseconds, the unit of the machine's clock."""
    return clock.ticks() * 1000


@final
class MachineClock:
    """Real time. `anchor` is `wall_minus_monotonic()`."""

    def __init__(self, anchor: int) -> None:
        self.anchor = anchor

    def ticks(self) -> int:
        return self.anchor + time.monotonic_ns() // 1000

    def wait(self, seconds: float) -> float:
        return seconds
