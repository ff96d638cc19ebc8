# mypyc: compile
"""Fixed window: count requests in windows of one period, aligned to the epoch.

Easy to reason about ("1,000 a day, the day starts at midnight UTC"), but twice the count can pass around the edge of a
window. State: `time`, and in `a` the count of the window of `time`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER, Algorithm, Step, tick_for
from crestgate.core.mypyc_types import i64
from crestgate.core.state import State

if TYPE_CHECKING:
    from crestgate.core.limit import Limit

__all__ = ["FixedWindow"]


@final
class FixedWindow(Algorithm):
    """Admits while the window's count + cost fits; at most twice the count passes in any period."""

    def __init__(self, limit: Limit, name: str) -> None:
        count = limit.count
        super().__init__(limit, name, count, tick_for(limit, lambda _: count), 0)

    def step(self, state: State, now: i64, cost: i64) -> Step:
        tick = self.tick
        period = self.period
        time = state.time
        count = state.a
        if tick == 1 and now >= time:  # the common case; the differences are small integers, which are cheap
            at = now
            gone = at % period
            until = period - gone
        else:
            at = self.instant(state, now)
            gone = at % period
            until = (at - gone + period) * tick - now
        if at - time > gone:
            count = 0
        after = count + cost
        capacity = self.capacity
        if after <= capacity or cost == 0:
            left = capacity - after
            return True, at, after, 0, left if left > 0 else 0, 0, until if after else 0
        left = capacity - count
        return False, at, count, 0, left if left > 0 else 0, until, until if count else 0

    def charge(self, state: State, now: i64, cost: i64) -> tuple[i64, i64, i64]:
        at = self.instant(state, now)
        return at, min(self.count(state, at) + cost, MAX_SAFE_INTEGER), 0

    def give_back(self, state: State, now: i64, amount: i64, tick: i64, cost: i64) -> tuple[i64, i64, i64, i64]:
        at = self.instant(state, now)
        if at // self.period != tick // self.period:
            return 0, at, 0, 0
        count = self.count(state, at)
        back = min(amount, count)
        return back, at, count - back, 0

    def used(self, state: State, now: i64) -> i64:
        return self.count(state, self.instant(state, now))

    def available_at(self, state: State, now: i64, room: i64) -> i64:
        at = self.instant(state, now)
        if self.count(state, at) <= room:
            return now
        return (at // self.period + 1) * self.period * self.tick

    def count(self, state: State, at: i64) -> i64:
        """The count of the window of the tick `at`, a result of `instant`."""
        return 0 if state.time < at - at % self.period else state.a
