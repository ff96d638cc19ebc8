"""The machine's clock: monotonic, anchored to the wall once, in whole microseconds.

Fixed windows are aligned to the epoch, so a store needs the wall's time; but the wall jumps when somebody sets it,
and a counter must not. So the wall is read once and the monotonic clock carries it on.
"""

from __future__ import annotations

import time
from typing import Protocol, final

__all__ = ["Clock", "MachineClock", "nanoseconds_of", "wall_minus_monotonic"]


class Clock(Protocol):
    """What a store on this machine's clock can be given instead (see `headgate.testing.FakeClock`)."""

    def ticks(self) -> int:
        """Now, in whole microseconds since the epoch."""

    def wait(self, seconds: float) -> float:
        """Somebody is about to wait this long: the real seconds to sleep (a virtual clock just moves on)."""


def wall_minus_monotonic() -> int:
    """Microseconds to add to the monotonic clock to get the wall's time."""
    return (time.time_ns() - time.monotonic_ns()) // 1000


def nanoseconds_of(clock: Clock) -> int:
    """A given clock's time in the unit of the machine's, for stores that read the machine's directly."""
    return clock.ticks() * 1000


@final
class MachineClock:
    """Real time."""

    def __init__(self, anchor: int) -> None:
        self.anchor = anchor

    def ticks(self) -> int:
        return self.anchor + time.monotonic_ns() // 1000

    def wait(self, seconds: float) -> float:
        return seconds
