"""A limit, compiled: the constants of one algorithm and its pure step over whole numbers.

Time comes in as whole microseconds and is cut into the limit's own ticks; amounts are whole units. Nothing is ever
rounded on the way, so the Python here, its twin in another language and a mapped file all decide alike, and
`retry` is the first microsecond that admits. Only `+`, `-`, `*`, comparison and floor division are used, on
numbers below 2**53, so that a language whose numbers are doubles can follow to the bit.

How every algorithm treats time (`at` is the tick of now, `state.time` that of the last change):

    at >= time              time passes
    time - period <= at     the clock ran backwards: no time has passed, and waits include the lag
    at < time - period      the clock had jumped ahead: the counter is rebased to now, its use unchanged

A step that rebases returns a `time` before the state's own. Whoever holds the state keeps that even when the
request is denied (`State.rebase`), or a full counter would be rebased at every call and never drain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.core.state import State
from headgate.errors import ConfigError

if TYPE_CHECKING:
    from headgate.core.limit import Limit

__all__ = ["EMPTY", "LARGEST", "Algorithm", "Step", "tick_for"]

LARGEST = 2**53 - 1
"""The largest number any step may meet: what a double still holds exactly."""

EMPTY = State(0, 0, 0, None)
"""The state of a counter that does not exist: nothing used, at no time."""

Step = tuple[bool, int, int, int, int, int, int]
"""What a step says: admitted?, then the state to write (time, a, b), then remaining, retry and reset.

The state counts only when the request is admitted and its cost is not 0. `remaining` is what is left after it,
`retry` (0 when admitted) and `reset` are microseconds from now.
"""


class Algorithm:
    """One limit under one counter name. Built once, shared freely: it never changes.

    A request whose cost exceeds `capacity` is never put to `step`; nor is any request when `capacity` is 0.
    """

    name: str
    """The counter's name: the plan's, the limit's own, or its notation."""
    capacity: int
    """The most that can be used at once, in whole requests."""
    tick: int
    """Microseconds in one tick of this limit."""
    period: int
    """Ticks in one period."""
    shape: tuple[str, int, int, int]
    """States written under equal shapes can be read as they are; others are carried over as units used."""
    keeps_log: bool
    """Whether states need a `Log` beside their three numbers."""
    queues: bool
    """Whether an admitted request has a `delay`."""
    limit: Limit

    def __init__(self, limit: Limit, name: str, capacity: int, tick: int, shaping_count: int) -> None:
        self.limit = limit
        self.name = name
        self.capacity = capacity
        self.tick = tick
        self.period = limit.period_us // tick
        self.shape = (limit.algorithm, shaping_count, limit.period_us, tick)
        self.keeps_log = False
        self.queues = False

    def step(self, state: State, now: int, cost: int) -> Step:
        """Decide a request of `cost` at `now`. Changes nothing."""
        raise NotImplementedError

    def charge(self, state: State, now: int, cost: int) -> tuple[int, int, int]:
        """The state after `cost` was taken whether or not it fits; what does not fit is a debt."""
        raise NotImplementedError

    def give_back(self, state: State, now: int, amount: int, tick: int, cost: int) -> tuple[int, int, int, int]:
        """Undo up to `amount` of what an admitted request of `cost` took; its step returned the time `tick`.

        Returns how much of the log or count is given back (0: write nothing) and the state to write.
        """
        raise NotImplementedError

    def used(self, state: State, now: int) -> int:
        """Whole requests used at `now`, rounded up."""
        raise NotImplementedError

    def frees(self, state: State, now: int, room: int) -> int:
        """The first microsecond, not before `now`, at which no more than `room` requests are used."""
        raise NotImplementedError

    def delay(self, used: int, cost: int) -> float:
        """Seconds an admitted request should wait, given `a` of its step. Only a shaping queue has any."""
        return 0.0

    def rebases(self, state: State, now: int) -> bool:
        """Whether the state is more than one period ahead of the clock."""
        return state.time - now // self.tick > self.period

    def instant(self, state: State, now: int) -> int:
        """The tick at which a state is to be seen: now, but never before the state's own time (see above)."""
        at = now // self.tick
        time = state.time
        return time if time - self.period <= at < time else at


def tick_for(limit: Limit, largest: Callable[[int], int]) -> int:
    """Microseconds in a tick: the smallest power of ten for which every number stays within 2**53.

    `largest` tells the largest number the algorithm needs when a period has so many ticks. It is taken twice, so
    that a debt as large as the limit itself is always remembered.
    """
    tick = 1
    while tick <= 1_000_000 and limit.period_us % tick == 0:
        period = limit.period_us // tick
        if 2 * max(period, largest(period)) <= LARGEST + 1:
            return tick
        tick *= 10
    raise ConfigError(
        f"limit {str(limit)!r} is too large to count exactly with {limit.algorithm}: "
        "write a smaller count or burst, or a shorter period"
    )
