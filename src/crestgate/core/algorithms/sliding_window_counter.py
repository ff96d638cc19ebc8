# mypyc: compile
"""Sliding window counter: two adjacent fixed windows, the older one weighted by its overlap with the last period.

Almost as even as the log with two numbers: with `pos` the elapsed share of the current window,
floor(previous * (1 - pos) + current) requests count as used. State: `time`, in `a` the count of the window of `time`
and in `b` that of the window before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER, Algorithm, Step, tick_for
from crestgate.core.mypyc_types import i64
from crestgate.core.state import State

if TYPE_CHECKING:
    from crestgate.core.limit import Limit

__all__ = ["SlidingWindowCounter"]


@final
class SlidingWindowCounter(Algorithm):
    """Admits while the weighted count + cost fits; at most twice the count passes in any period."""

    def __init__(self, limit: Limit, name: str) -> None:
        count = limit.count
        super().__init__(limit, name, count, tick_for(limit, lambda period: count * period), 0)
        self.largest_count: i64 = MAX_SAFE_INTEGER // self.period  # a window's count times the period stays below 2**53
        self.max_a = self.largest_count
        self.max_b = self.largest_count

    def step(self, state: State, now: i64, cost: i64) -> Step:
        tick = self.tick
        period = self.period
        at = now if tick == 1 else now // tick
        time = state.time
        current = state.a
        previous = state.b
        if at >= time:
            gone = at % period
            start = at - gone
            if time < start:
                previous = current if time >= start - period else 0
                current = 0
        else:
            if time - at <= period:
                at = time
            gone = at % period
            start = at - gone
        used = current
        if previous > 0:
            used += previous * (period - gone) // period
            if used == 0:
                previous = 0  # less than one request is left: fully recovered, whatever the clock does next
        capacity = self.capacity
        after = used + cost
        if after <= capacity or cost == 0:
            left = capacity - after
            current += cost
            if current > 0:  # drained_at in the next window, inlined
                reset = (start + 2 * period + 1 - -(-period // current)) * tick - now
            else:
                reset = self.drained_at(at, start, current, previous, 0) * tick - now if after else 0
            return True, at, current, previous, left if left > 0 else 0, 0, reset
        left = capacity - used
        return (
            False,
            at,
            current,
            previous,
            left if left > 0 else 0,
            self.drained_at(at, start, current, previous, capacity - cost) * tick - now,
            self.drained_at(at, start, current, previous, 0) * tick - now if used else 0,
        )

    def charge(self, state: State, now: i64, cost: i64) -> tuple[i64, i64, i64]:
        at = self.instant(state, now)
        current, previous = self.counts(state, at)
        if current + previous * (self.period - at % self.period) // self.period == 0:
            previous = 0
        return at, min(current + cost, self.largest_count), previous

    def give_back(self, state: State, now: i64, amount: i64, tick: i64, cost: i64) -> tuple[i64, i64, i64, i64]:
        at = self.instant(state, now)
        current, previous = self.counts(state, at)
        windows = at // self.period - tick // self.period
        if windows == 0:
            back = min(amount, current)
            return back, at, current - back, previous
        if windows == 1 and self.available_at(state, now, 0) > now:
            back = min(amount, previous)
            return back, at, current, previous - back
        return 0, at, current, previous

    def used(self, state: State, now: i64) -> i64:
        at = self.instant(state, now)
        current, previous = self.counts(state, at)
        return current + previous * (self.period - at % self.period) // self.period

    def available_at(self, state: State, now: i64, room: i64) -> i64:
        at = self.instant(state, now)
        gone = at % self.period
        current, previous = self.counts(state, at)
        if current + (previous * (self.period - gone) // self.period if previous else 0) <= room:
            return now
        return self.drained_at(at, at - gone, current, previous, room) * self.tick

    def counts(self, state: State, at: i64) -> tuple[i64, i64]:
        """The counts of the window of the tick `at` (a result of `instant`) and of the window before."""
        start = at - at % self.period
        if state.time >= start:
            return state.a, state.b
        return 0, state.a if state.time >= start - self.period else 0

    def drained_at(self, at: i64, start: i64, current: i64, previous: i64, room: i64) -> i64:
        """The first tick, not before `at`, at which no more than `room` is used without further requests.

        In this window that is when the weighted previous count is low enough; if that is impossible, in the next
        window, where the current count has become the previous one, or at its end.
        """
        period = self.period
        if current <= room:
            tick = self.previous_window_decayed_at(start, previous, room - current)
            if tick < start + period:
                return max(tick, at)
        return self.previous_window_decayed_at(start + period, current, room)

    def previous_window_decayed_at(self, start: i64, previous: i64, room: i64) -> i64:
        """The first tick of the window from `start`, or its end, at which floor(previous * (1 - pos)) <= room."""
        if previous <= room:
            return start
        return start + self.period + 1 - -(-(room + 1) * self.period // previous)
