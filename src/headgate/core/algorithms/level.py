"""A level that rises with every request and falls at a steady rate: the arithmetic of three algorithms.

A token bucket, a leaky bucket and GCRA are one machine seen from three sides: tokens taken, water poured, a
theoretical arrival time pushed ahead of now. All three admit while the level plus the cost stays within the
capacity, so they share this file, and each says in its own what it adds.

Units: one request is `unit` units and one tick drains `rate` of them, whole numbers both:

    unit = period / gcd(count, period)        rate = count / gcd(count, period)

State: `time`, and in `a` the level at that time, in units. `b` is not used.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from headgate.core.algorithms.algorithm import LARGEST, Algorithm, Step, tick_for
from headgate.core.state import State

if TYPE_CHECKING:
    from headgate.core.limit import Limit

__all__ = ["Level"]


class Level(Algorithm):
    """Admits while level + cost fits the capacity; at most `burst + rate * t` pass in any span t."""

    def __init__(self, limit: Limit, name: str) -> None:
        count, capacity = limit.count, limit.capacity

        def largest(period: int) -> int:
            divisor = gcd(count, period)
            return max(capacity * (period // divisor), count // divisor)

        super().__init__(limit, name, capacity, tick_for(limit, largest), count)
        divisor = gcd(count, self.period)
        self.unit = self.period // divisor
        self.rate = count // divisor
        self.full = capacity * self.unit
        # Beyond this many ticks any level has drained; within it, ticks * rate stays below 2**53.
        self.longest = LARGEST // self.rate if count else LARGEST

    def step(self, state: State, now: int, cost: int) -> Step:
        tick = self.tick
        at = now if tick == 1 else now // tick
        time = state.time
        level = state.a
        if at >= time:
            if level:
                level = level - (at - time) * self.rate if at - time <= self.longest else 0
                if level < 0:
                    level = 0
        elif time - at <= self.period:
            at = time
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
                0,
                (at - -after // self.rate) * tick - now if after else 0,
            )
        left = full - level
        return (
            False,
            at,
            level,
            0,
            left // unit if left > 0 else 0,
            (at - (full - after) // self.rate) * tick - now,
            (at - -level // self.rate) * tick - now,
        )

    def charge(self, state: State, now: int, cost: int) -> tuple[int, int, int]:
        at = self.instant(state, now)
        level = self.level(state, at)
        # A debt beyond what a number can hold is cut there: see tick_for.
        return at, level + cost * self.unit if cost <= (LARGEST - level) // self.unit else LARGEST, 0

    def give_back(self, state: State, now: int, amount: int, tick: int, cost: int) -> tuple[int, int, int, int]:
        # What has drained since `tick` may have been this request's: were it given back too, it would count twice.
        at = self.instant(state, now)
        level = self.level(state, at)
        elapsed = max(at - tick, 0)
        drained = elapsed * self.rate if elapsed <= self.longest else LARGEST
        back = max(min(amount * self.unit, cost * self.unit - drained, level), 0)
        return back, at, level - back, 0

    def used(self, state: State, now: int) -> int:
        return -(-self.level(state, self.instant(state, now)) // self.unit)

    def frees(self, state: State, now: int, room: int) -> int:
        at = self.instant(state, now)
        excess = self.level(state, at) - room * self.unit
        return (at - -excess // self.rate) * self.tick if excess > 0 else now

    def level(self, state: State, at: int) -> int:
        """Units at the tick `at`, as `instant` gave it."""
        elapsed = at - state.time
        if elapsed <= 0:
            return state.a
        return max(state.a - elapsed * self.rate, 0) if elapsed <= self.longest else 0
