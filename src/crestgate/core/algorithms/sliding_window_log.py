# mypyc: compile
"""Sliding window log: store every admitted request and count those younger than one period.

Exact in every span, with an entry per request (requests of the same tick share one). An entry of tick t stops counting
at exactly t + period. State: `time`, in `a` the total cost of the stored entries, in `b` the tick of the newest entry
with a cost, and the entries in the log.

In-flight limits (`concurrency`) are the same with another name: an entry is a slot that is held, and the period is its
time to live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER, Algorithm, Step, tick_for
from crestgate.core.mypyc_types import i64
from crestgate.core.state import Log, State

if TYPE_CHECKING:
    from crestgate.core.limit import Limit

__all__ = ["SlidingWindowLog"]


@final
class SlidingWindowLog(Algorithm):
    """Admits while the cost of the entries of the last period + cost fits; at most the count passes in any period."""

    def __init__(self, limit: Limit, name: str) -> None:
        count = limit.count
        super().__init__(limit, name, count, tick_for(limit, lambda _: count), 0)
        self.keeps_log = True
        self.holds = limit.algorithm == "concurrency"
        self.min_b = -self.last_tick
        self.max_b = self.last_tick

    def step(self, state: State, now: i64, cost: i64) -> Step:
        tick = self.tick
        period = self.period
        at = now if tick == 1 else now // tick
        time = state.time
        log = state.log
        seen = at  # the instant in the time of the entries
        if at < time:
            seen = time
            if time - at <= period:
                at = time
        gone = log.expired(seen - period) if log is not None and log.oldest <= seen - period else 0
        live = state.a - gone
        capacity = self.capacity
        after = live + cost
        if after <= capacity or cost == 0:
            left = capacity - after
            newest = at if cost else state.b + at - seen
            return (
                True,
                at,
                after,
                newest,
                left if left > 0 else 0,
                0,
                (newest + period) * tick - now if after else 0,
            )
        left = capacity - live
        newest = state.b + at - seen
        freeing = log.tick_when_freed(gone + after - capacity) + at - seen if log is not None else at
        return (
            False,
            at,
            live,
            newest,
            left if left > 0 else 0,
            (freeing + period) * tick - now,
            (newest + period) * tick - now if live else 0,
        )

    def charge(self, state: State, now: i64, cost: i64) -> tuple[i64, i64, i64]:
        at = self.instant(state, now)
        return at, min(self.live(state, at) + cost, MAX_SAFE_INTEGER), at

    def give_back(self, state: State, now: i64, amount: i64, tick: i64, cost: i64) -> tuple[i64, i64, i64, i64]:
        at = self.instant(state, now)
        log = state.log
        if log is None or at < state.time or tick <= at - self.period:
            return 0, at, state.a, state.b
        back = min(amount, log.cost_at(tick))
        return back, at, state.a - back, state.b

    def used(self, state: State, now: i64) -> i64:
        return self.live(state, self.instant(state, now))

    def available_at(self, state: State, now: i64, room: i64) -> i64:
        at = self.instant(state, now)
        excess = self.live(state, at) - room
        log: Log | None = state.log
        if excess <= 0 or log is None:
            return now
        last = state.b if room == 0 else log.tick_when_freed(state.a - room)
        return (last + at - max(at, state.time) + self.period) * self.tick

    def live(self, state: State, at: i64) -> i64:
        """The cost of the entries of the last period at the tick `at`, a result of `instant`."""
        log = state.log
        if log is None:
            return 0
        return state.a - log.expired(max(at, state.time) - self.period)
