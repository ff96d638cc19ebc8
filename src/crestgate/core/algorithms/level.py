# mypyc: compile
"""Common arithmetic of token bucket, leaky bucket and GCRA: a level that falls at a steady rate.

The level is the tokens taken, the water in the bucket, or the distance to the theoretical arrival time. All three admit
while the level plus the cost stays within the capacity.

Units: one request is `unit` units and one tick drains `rate` of them, whole numbers both:

    unit = period / gcd(count, period)        rate = count / gcd(count, period)

State: `time`, and in `a` the level at that time, in units. `b` is not used.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER, Algorithm, Step, tick_for, too_large
from crestgate.core.mypyc_types import i64
from crestgate.core.state import State

if TYPE_CHECKING:
    from crestgate.core.limit import Limit

__all__ = ["Level"]


class Level(Algorithm):
    """Admits while level + cost fits the capacity; at most `burst + rate * t` pass in any span t."""

    def __init__(self, limit: Limit, name: str) -> None:
        count, capacity = limit.count, limit.capacity

        def largest(period: int) -> int:
            divisor = gcd(count, period)
            return max(capacity * (period // divisor), count // divisor)

        if capacity * limit.period_us > count * MAX_SAFE_INTEGER:
            raise too_large(limit)
        super().__init__(limit, name, capacity, tick_for(limit, largest), count)
        self.keeps_charges = limit.lease
        self.recovery_us = capacity * limit.period_us // count if count else 0
        period = int(self.period)  # constants are computed with numbers of any size
        rate = count // gcd(count, period)
        self.unit: i64 = period // gcd(count, period)
        self.rate: i64 = rate
        self.full: i64 = capacity * (period // gcd(count, period))
        # Beyond this many ticks any level has drained; within it, ticks * rate stays below 2**53.
        self.max_ticks: i64 = MAX_SAFE_INTEGER // rate if count else MAX_SAFE_INTEGER
        # The end of a debt, in microseconds, must not exceed 2**53.
        self.max_debt: i64 = min(MAX_SAFE_INTEGER, rate * (MAX_SAFE_INTEGER // int(self.tick)))
        self.max_a = max(self.max_debt, self.full)

    def step(self, state: State, now: i64, cost: i64) -> Step:
        tick = self.tick
        rate = self.rate
        level = state.a
        elapsed = now - state.time
        if tick == 1 and elapsed >= 0:  # the common case; the differences are small integers, which are cheap
            at = now
            ahead: i64 = 0
        else:
            at = self.instant(state, now)
            ahead = at * tick - now
            elapsed = at - state.time
        if elapsed > 0 and level:
            level = level - elapsed * rate if elapsed <= self.max_ticks else 0
            level = max(level, 0)
        unit = self.unit
        full = self.full
        after = level + cost * unit
        if after <= full or cost == 0:
            left = full - after
            return (
                True,
                at,
                after,
                0,
                left // unit if left > 0 else 0,
                level if self.queues else 0,
                ahead - -after // rate * tick if after else 0,
            )
        left = full - level
        return (
            False,
            at,
            level,
            0,
            left // unit if left > 0 else 0,
            ahead - (full - after) // rate * tick,
            ahead - -level // rate * tick,
        )

    def charge(self, state: State, now: i64, cost: i64) -> tuple[i64, i64, i64]:
        at = self.instant(state, now)
        level = self.level(state, at)
        return at, level + cost * self.unit if cost <= (self.max_debt - level) // self.unit else self.max_debt, 0

    def give_back(self, state: State, now: i64, amount: i64, tick: i64, cost: i64) -> tuple[i64, i64, i64, i64]:
        # What has drained since `tick` may belong to this request: giving it back, too, would count it twice.
        at = self.instant(state, now)
        level = self.level(state, at)
        elapsed = max(at - tick, 0)
        drained = elapsed * self.rate if elapsed <= self.max_ticks else MAX_SAFE_INTEGER
        back = max(min(amount * self.unit, cost * self.unit - drained, level), 0)
        return back, at, level - back, 0

    def used(self, state: State, now: i64) -> i64:
        return -(-self.level(state, self.instant(state, now)) // self.unit)

    def available_at(self, state: State, now: i64, room: i64) -> i64:
        at = self.instant(state, now)
        level = self.level(state, at)
        if -(-level // self.unit) <= room:
            return now
        return (at - (room * self.unit - level) // self.rate) * self.tick

    def level(self, state: State, at: i64) -> i64:
        """Units at the tick `at`, a result of `instant`."""
        elapsed = at - state.time
        if elapsed <= 0:
            return state.a
        return max(state.a - elapsed * self.rate, 0) if elapsed <= self.max_ticks else 0
