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
from typing import TYPE_CHECKING, Final

from headgate.core.state import State
from headgate.core.words import i64
from headgate.errors import ConfigError

if TYPE_CHECKING:
    from headgate.core.limit import Limit

__all__ = ["EMPTY", "LARGEST", "Algorithm", "Step", "tick_for", "too_large"]

LARGEST: Final = 9_007_199_254_740_991
"""2**53 - 1, the largest number any step may meet: what a double still holds exactly."""

EMPTY = State(-LARGEST, 0, 0, None)
"""The state of a counter that does not exist: nothing used, and that long before any time."""

Step = tuple[bool, i64, i64, i64, i64, i64, i64]
"""What a step says: admitted?, then the state to write (time, a, b), then remaining, wait and reset.

The state counts only when the request is admitted and its cost is not 0. `remaining` is what is left after it.
`wait` is, for a denied request, the microseconds until it would pass; for an admitted one what is queued before it,
in units (0 but for a leaky bucket). `reset` is in microseconds from now.
"""


class Algorithm:
    """One limit under one counter name. Built once, shared freely: it never changes.

    A request whose cost exceeds `ceiling` is never put to `step`: no waiting helps it.
    """

    name: str
    """The counter's name: the plan's, the limit's own, or its notation."""
    label: str
    """What decisions call it: the counter's name, or the rule that said so."""
    capacity: i64
    """The most that can be used at once, in whole requests."""
    ceiling: i64
    """The highest cost that is ever put to `step`: the capacity, or less than any cost for a limit that blocks."""
    tick: i64
    """Microseconds in one tick of this limit."""
    period: i64
    """Ticks in one period."""
    shape: tuple[str, int, int, int]
    """States written under equal shapes can be read as they are; others are carried over as units used."""
    lasts_us: i64
    """Microseconds after which a counter that was full is as good as new; about, for keeping house."""
    keeps_log: bool
    """Whether states need a `Log` beside their three numbers."""
    inline: bool
    """Whether a caller of a service wrote the limit out itself: a store then gives it a share of its room only."""
    queues: bool
    """Whether admitted requests queue: their step's `wait` says behind how much."""
    limit: Limit
    last_tick: i64
    """No state is later than this tick, nor earlier than minus it: its microseconds stay below 2**53."""
    min_a: i64
    max_a: i64
    min_b: i64
    max_b: i64
    """What `a` and `b` of a state can be, debts included."""

    def __init__(self, limit: Limit, name: str, capacity: i64, tick: i64, shaping_count: i64) -> None:
        self.limit = limit
        self.name = name
        self.label = name
        self.capacity = capacity
        self.ceiling = capacity if capacity else -1
        self.tick = tick
        self.period = limit.period_us // tick
        self.shape = (limit.algorithm, shaping_count, limit.period_us, tick)
        self.lasts_us = limit.period_us
        self.keeps_log = False
        self.inline = False
        self.queues = False
        self.last_tick = LARGEST // tick
        self.min_a = 0
        self.max_a = LARGEST
        self.min_b = 0
        self.max_b = 0

    def step(self, state: State, now: i64, cost: i64) -> Step:
        """Decide a request of `cost` at `now`. Changes nothing."""
        raise NotImplementedError

    def charge(self, state: State, now: i64, cost: i64) -> tuple[i64, i64, i64]:
        """The state after `cost` was taken whether or not it fits; what does not fit is a debt."""
        raise NotImplementedError

    def give_back(self, state: State, now: i64, amount: i64, tick: i64, cost: i64) -> tuple[i64, i64, i64, i64]:
        """Undo up to `amount` of what an admitted request of `cost` took; its step returned the time `tick`.

        Returns how much of the log or count is given back (0: write nothing) and the state to write.
        """
        raise NotImplementedError

    def used(self, state: State, now: i64) -> i64:
        """Whole requests used at `now`, rounded up."""
        raise NotImplementedError

    def frees(self, state: State, now: i64, room: i64) -> i64:
        """The first microsecond, not before `now`, at which no more than `room` requests are used."""
        raise NotImplementedError

    def delay(self, queued: i64) -> float:
        """Seconds until so many units have left the queue. Only a leaky bucket has one."""
        return 0.0

    def is_plausible(self, time: i64, a: i64, b: i64) -> bool:
        """Whether this algorithm can have written such a state. A store asks when what it keeps may be damaged."""
        return (
            -self.last_tick <= time <= self.last_tick
            and self.min_a <= a <= self.max_a
            and self.min_b <= b <= self.max_b
        )

    def rebases(self, state: State, now: i64) -> bool:
        """Whether the state is more than one period ahead of the clock."""
        return state.time - now // self.tick > self.period

    def instant(self, state: State, now: i64) -> i64:
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
    raise too_large(limit)


def too_large(limit: Limit) -> ConfigError:
    return ConfigError(
        f"limit {str(limit)!r} is too large to count exactly with {limit.algorithm}: "
        "write a smaller count or burst, or a shorter period"
    )
