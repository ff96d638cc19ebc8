# mypyc: compile
"""Compiled limit: the constants of one algorithm, and its pure step over integers.

Time is in whole microseconds and divided into the limit's own ticks; amounts are whole units. Nothing is ever rounded,
so the Python code, its Lua twin and a mapped file all decide alike, and `retry` is the first microsecond that admits.
Only `+`, `-`, `*`, comparison and floor division are used, on numbers below 2**53, so that a language whose numbers are
doubles gives the same results to the bit.

How every algorithm treats time (`at` is the tick of now, `state.time` that of the last change):

    at >= time              time passes
    time - period <= at     the clock ran backwards: no time has passed, and waits include the lag
    at < time - period      the clock had jumped ahead: the counter is rebased to now, its use unchanged

A step that rebases returns a `time` before the state's own. Stores write that even when the request is denied
(`State.rebase`), or a full counter would be rebased at every call and never drain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from crestgate.core.mypyc_types import i64
from crestgate.core.state import State
from crestgate.errors import ConfigError

if TYPE_CHECKING:
    from crestgate.core.limit import Limit

__all__ = ["EMPTY", "MAX_SAFE_INTEGER", "Algorithm", "Step", "tick_for", "too_large"]

MAX_SAFE_INTEGER: Final = 9_007_199_254_740_991
"""2**53 - 1, the largest number of any step: up to it doubles are exact."""

EMPTY = State(-MAX_SAFE_INTEGER, 0, 0, None)
"""The state of a counter that does not exist: nothing used, since long ago."""

Step = tuple[bool, i64, i64, i64, i64, i64, i64]
"""The result of a step: admitted, the state to write (time, a, b), remaining, wait and reset.

The state counts only when the request is admitted and its cost is not 0. `remaining` is what is left after it.
`wait` is, for a denied request, the microseconds until it would pass; for an admitted one what is queued before it,
in units (0 but for a leaky bucket). `reset` is in microseconds from now.
"""


class Algorithm:
    """One limit of one counter name. Immutable.

    A request whose cost exceeds `ceiling` is never passed to `step`: it can never be admitted.
    """

    name: str
    """The counter's name: the plan's, the limit's own, or its notation."""
    label: str
    """The name in decisions: the counter's name, or the rule's."""
    endpoint: str | None
    """The endpoint pattern of the rule that this limit is of; None if it is not of a rule."""
    store: str | None
    """The name of the store that its counters are in; None for the limiter's own."""
    in_headers: bool
    """Whether the headers of responses show this limit."""
    lease: bool
    """Whether processes may decide from slices that they have charged in advance."""
    keeps_charges: bool
    """Whether charges stay until they have drained: processes that share the counter count on it for their slices (see
    limiter/leases.py), so a give-back does nothing."""
    capacity: i64
    """Maximum use at one time, in requests."""
    ceiling: i64
    """Maximum cost for `step`: the capacity, or -1 for a limit of 0."""
    tick: i64
    """Microseconds in one tick of this limit."""
    period: i64
    """Ticks in one period."""
    shape: tuple[str, int, int, int]
    """States of equal shapes are compatible; others are carried over as units used."""
    stored_as: tuple[str, int, int, int]
    """What stores write beside a state, to know later which limit wrote it: name of the algorithm, count, capacity,
    period in microseconds."""
    recovery_us: i64
    """Microseconds until a full counter has recovered; approximate, for expiry."""
    keeps_log: bool
    """Whether states need a `Log` beside their three numbers."""
    inline: bool
    """Whether a caller of a service defined the limit: a store then reserves only a share of its space for it."""
    holds: bool
    """Whether it counts requests in flight: its slots are held and renewed, and a plain check only looks at them."""
    queues: bool
    """Whether admitted requests queue: their step's `wait` is the queue before them."""
    limit: Limit
    last_tick: i64
    """Bound of a state's time, in both directions: its microseconds stay below 2**53."""
    min_a: i64
    max_a: i64
    min_b: i64
    max_b: i64
    """Bounds of a state's `a` and `b`, debts included."""

    def __init__(self, limit: Limit, name: str, capacity: i64, tick: i64, shaping_count: i64) -> None:
        self.limit = limit
        self.name = name
        self.label = name
        self.endpoint = None
        self.store = None
        self.in_headers = True
        self.lease = limit.lease
        self.keeps_charges = False
        self.capacity = capacity
        self.ceiling = capacity if capacity else -1
        self.tick = tick
        self.period = limit.period_us // tick
        self.shape = (limit.algorithm, shaping_count, limit.period_us, tick)
        self.stored_as = (limit.algorithm, limit.count, capacity, limit.period_us)
        self.recovery_us = limit.period_us
        self.keeps_log = False
        self.inline = False
        self.holds = False
        self.queues = False
        self.last_tick = MAX_SAFE_INTEGER // tick
        self.min_a = 0
        self.max_a = MAX_SAFE_INTEGER
        self.min_b = 0
        self.max_b = 0

    def step(self, state: State, now: i64, cost: i64) -> Step:
        """Decide a request of `cost` at `now`. Changes nothing."""
        raise NotImplementedError

    def charge(self, state: State, now: i64, cost: i64) -> tuple[i64, i64, i64]:
        """The state after charging `cost` whether or not it fits; the excess is a debt."""
        raise NotImplementedError

    def give_back(self, state: State, now: i64, amount: i64, tick: i64, cost: i64) -> tuple[i64, i64, i64, i64]:
        """Undo up to `amount` of the charge of an admitted request of `cost`, whose step returned the time `tick`.

        Returns how much of the log or count is given back (0: write nothing) and the state to write.
        """
        raise NotImplementedError

    def used(self, state: State, now: i64) -> i64:
        """Whole requests used at `now`, rounded up."""
        raise NotImplementedError

    def available_at(self, state: State, now: i64, room: i64) -> i64:
        """The first microsecond, not before `now`, at which no more than `room` requests are used."""
        raise NotImplementedError

    def delay(self, queued: i64) -> float:
        """Seconds until so many units have left the queue. 0 but for a leaky bucket."""
        return 0.0

    def is_plausible(self, time: i64, a: i64, b: i64) -> bool:
        """Whether this algorithm can have written such a state; for stores whose data may be corrupt."""
        return (
            -self.last_tick <= time <= self.last_tick
            and self.min_a <= a <= self.max_a
            and self.min_b <= b <= self.max_b
        )

    def needs_rebase(self, state: State, now: i64) -> bool:
        """Whether the state is more than one period ahead of the clock."""
        return state.time - now // self.tick > self.period

    def rebase(self, state: State, now: i64) -> None:
        """Move a state of this shape that needs a rebase to now."""
        state.rebase(now // self.tick)

    def rebase_under_other_limit(self, state: State, now: i64) -> None:
        """`rebase` by a request of another limit, in a store that may know no more of this one than its numbers."""
        state.rebase(now // self.tick)

    def instant(self, state: State, now: i64) -> i64:
        """The tick at which a state is evaluated: now, but not before the state's own time (see above)."""
        at = now // self.tick
        time = state.time
        return time if time - self.period <= at < time else at


def tick_for(limit: Limit, largest: Callable[[int], int]) -> int:
    """Microseconds in a tick: the smallest power of ten for which every number stays within 2**53.

    `largest` gives the largest number that the algorithm needs for a period of so many ticks. It is doubled, so that a
    debt as large as the limit itself always fits.
    """
    tick = 1
    while tick <= 1_000_000 and limit.period_us % tick == 0:
        period = limit.period_us // tick
        if 2 * max(period, largest(period)) <= MAX_SAFE_INTEGER + 1:
            return tick
        tick *= 10
    raise too_large(limit)


def too_large(limit: Limit) -> ConfigError:
    return ConfigError(
        f"limit {str(limit)!r} is too large to count exactly with {limit.algorithm}: "
        "write a smaller count or burst, or a shorter period"
    )
