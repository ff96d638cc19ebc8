# mypyc: compile
"""Calendar window: count requests in windows of civil time, such as the days of Europe/Berlin.

A fixed window whose boundaries come from a calendar (core/calendar.py). State: `time`, in `a` the count of the window
of `time`, and in `b` the end of that window. So whoever reads a state knows how long it counts, without the zone:
another limit, a store that has no calendar, and clients whose time zone databases differ.

The period, by which a counter that is ahead of the clock is judged, is no shorter than any window. A state that is
rebased by a request of another limit, whose store may not know the calendar, counts for one period.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final, final

from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER, Algorithm, Step, tick_for
from crestgate.core.mypyc_types import i64
from crestgate.core.state import State
from crestgate.errors import ConfigError

if TYPE_CHECKING:
    from crestgate.core.calendar import Calendar
    from crestgate.core.limit import Limit

__all__ = ["CALENDAR_WINDOW", "CalendarWindow", "build_calendar_window", "calendar_writer"]

CALENDAR_WINDOW: Final = "calendar_window"
"""The name of this algorithm beside a state. Limits call it fixed_window, with a unit."""


@final
class CalendarWindow(Algorithm):
    """Admits while the window's count + cost fits; at most twice the count passes around the edge of a window.

    Without a calendar it can only read states: that is what stores rebuild from a stored counter.
    """

    def __init__(self, limit: Limit, name: str, calendar: Calendar | None, identity: i64, period: i64) -> None:
        count = limit.count
        super().__init__(limit, name, count, tick_for(limit, lambda _: count), 0)
        self.calendar = calendar
        self.period = period
        self.shape = (CALENDAR_WINDOW, identity, period, self.tick)
        self.stored_as = (CALENDAR_WINDOW, identity, count, period)
        self.recovery_us = period
        self.max_b = MAX_SAFE_INTEGER + period
        self.known: tuple[int, int] = (0, 0)
        """The window that was computed last: most requests are in it."""

    def window(self, at: i64) -> tuple[int, int]:
        """Start and end of the window of the tick `at`."""
        known = self.known
        if not known[0] <= at < known[1]:
            calendar = self.calendar
            if calendar is None:
                raise no_calendar()
            known = calendar.window(at)
            self.known = known
        return known

    def segments(self, since: i64, until: i64) -> tuple[tuple[int, int], ...]:
        """The windows from one tick to another: see `Calendar.segments`."""
        if self.calendar is None:
            raise no_calendar()
        segments: tuple[tuple[int, int], ...] = self.calendar.segments(since, until)
        return segments

    def step(self, state: State, now: i64, cost: i64) -> Step:
        at = self.instant(state, now)
        count, end = self.count(state, at)
        after = count + cost
        capacity = self.capacity
        until = end - now
        if after <= capacity or cost == 0:
            left = capacity - after
            return True, at, after, end, left if left > 0 else 0, 0, until if after else 0
        left = capacity - count
        return False, at, count, end, left if left > 0 else 0, until, until if count else 0

    def charge(self, state: State, now: i64, cost: i64) -> tuple[i64, i64, i64]:
        at = self.instant(state, now)
        count, end = self.count(state, at)
        return at, min(count + cost, MAX_SAFE_INTEGER), end

    def give_back(self, state: State, now: i64, amount: i64, tick: i64, cost: i64) -> tuple[i64, i64, i64, i64]:
        at = self.instant(state, now)
        start, end = self.window(at)
        if not start <= tick < end:
            return 0, at, 0, end
        count, ends = self.count(state, at)
        back = min(amount, count)
        return back, at, count - back, ends

    def used(self, state: State, now: i64) -> i64:
        return state.a if self.instant(state, now) < self.end(state, now) else 0

    def available_at(self, state: State, now: i64, room: i64) -> i64:
        return now if self.used(state, now) <= room else self.end(state, now)

    def rebase(self, state: State, now: i64) -> None:
        state.rebase(now)
        state.b = self.window(now)[1]

    def rebase_under_other_limit(self, state: State, now: i64) -> None:
        state.rebase(now)
        state.b = now + self.period

    def count(self, state: State, at: i64) -> tuple[i64, i64]:
        """The count and the end of the window of the tick `at`, a result of `instant`."""
        time = state.time
        end = state.b
        if time <= at < end and end - time <= self.period:
            return state.a, end
        window = self.window(at)
        start: i64 = window[0]
        return 0 if time < start else state.a, window[1]

    def end(self, state: State, now: i64) -> i64:
        """When a state stops counting, without the calendar."""
        if state.time - self.period > now:
            return now + self.period
        return min(state.b, state.time + self.period)


def no_calendar() -> ConfigError:
    return ConfigError("a calendar window that was rebuilt from a stored counter cannot decide requests")


def build_calendar_window(limit: Limit, name: str, unit: str, zone: str) -> CalendarWindow:
    from crestgate.core.calendar import calendar_of

    calendar = calendar_of(unit, zone)
    return CalendarWindow(limit, name, calendar, calendar.identity, calendar.max_us)


def calendar_writer(identity: int, capacity: int, period_us: int) -> CalendarWindow:
    """What reads a stored state, from the numbers beside it (`Algorithm.stored_as`)."""
    from crestgate.core.limit import Limit

    limit = Limit(capacity, Fraction(period_us, 1_000_000), None, "fixed_window")
    return CalendarWindow(limit, "", None, identity, period_us)
