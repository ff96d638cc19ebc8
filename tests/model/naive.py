"""A second opinion on the algorithms and on calendar windows, slow and obvious.

The library computes with scaled whole numbers and closed formulas, because it
has to be fast and the same in Python, Lua and SQL. A mistake in a formula would
be repeated in every one of them. So this model shares nothing with the library:
it keeps the history of a counter, recomputes the usage from that history with
exact fractions, and finds every waiting time by searching for the first tick at
which the answer changes.

All times are whole microseconds. A calendar window is written as an algorithm:
``calendar day in Europe/Berlin``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from civil import is_calendar, longest_us, window_key

BUCKETS = ("token_bucket", "leaky_bucket", "gcra")
WINDOWS = ("fixed_window", "sliding_window_log", "sliding_window_counter")
ALGORITHMS = BUCKETS + WINDOWS
CONCURRENCY = "concurrency"
"""At most so many holders at once. A slot that its holder does not renew is free after one period."""
LOGS = ("sliding_window_log", CONCURRENCY)
EXACT = 2**53
SECOND = 1_000_000
TICKS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)

Event = tuple[int, Fraction]
"""What was added at a tick; a give-back is a negative amount."""


@dataclass(frozen=True)
class Limit:
    """Kept apart from the counter, because a counter may outlive its limit."""

    algorithm: str
    count: int
    period_us: int
    burst: int | None = None

    def __post_init__(self) -> None:
        if self.algorithm not in (*ALGORITHMS, CONCURRENCY) and not is_calendar(self.algorithm):
            raise ValueError(f"unknown algorithm {self.algorithm!r}")
        if self.resolution == 0:
            raise ValueError(f"no tick up to a second keeps {self} exact")

    @property
    def capacity(self) -> int:
        """A blocking limit has none, whatever its burst says."""
        if self.count == 0:
            return 0
        if self.algorithm in BUCKETS and self.burst is not None:
            return self.burst
        return self.count

    @cached_property
    def resolution(self) -> int:
        """Numbers beyond 2**53 are not exact in Lua, so big limits tick slower.

        Zero when no tick is slow enough.
        """
        for tick in TICKS:
            if self.period_us % tick == 0 and self._exact(self.period_us // tick):
                return tick
        return 0

    def _exact(self, p: int) -> bool:
        n, b = self.count, self.capacity
        if 2 * p > EXACT:
            return False
        if self.algorithm in BUCKETS:
            common = math.gcd(n, p)
            return 2 * b * p // common <= EXACT and 2 * n // common <= EXACT
        if self.algorithm == "sliding_window_counter":
            return 2 * n * p <= EXACT
        return 2 * n <= EXACT

    @property
    def ticks(self) -> int:
        """The period as the algorithms see it."""
        if is_calendar(self.algorithm):
            return longest_us(self.algorithm)
        return self.period_us // self.resolution

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """State written under one limit can be read under another of this shape."""
        n = self.count if self.algorithm in BUCKETS else 0
        return (self.algorithm, n, self.period_us, self.resolution)


@dataclass(frozen=True)
class View:
    """What a call sees: a history, and the tick at which it is looked at.

    The limit is the one the history was written under.
    """

    limit: Limit
    events: tuple[Event, ...]
    tick: int
    loose_until: int | None = None
    """What a clock that was ahead has left in a calendar window, and another limit looks at: without the calendar it is
    only known to end after the longest window."""

    def used(self, t: int) -> Fraction:
        """Replayed from the first event, so no formula has to be trusted."""
        if is_calendar(self.limit.algorithm):
            return self.calendar(t)
        rate = Fraction(self.limit.count, self.limit.ticks)
        if self.limit.algorithm == "gcra":
            arrival = Fraction(0)
            for tick, amount in self.events:
                arrival = max(arrival, Fraction(tick)) + amount / rate
            return max(Fraction(0), arrival - t) * rate
        if self.limit.algorithm in BUCKETS:
            level, last = Fraction(0), 0
            for tick, amount in self.events:
                level = max(Fraction(0), level - (tick - last) * rate) + amount
                last = tick
            return max(Fraction(0), level - (t - last) * rate)
        if self.limit.algorithm == "fixed_window":
            return self.window(t // self.limit.ticks)
        if self.limit.algorithm in LOGS:
            period = self.limit.ticks
            live = (amount for tick, amount in self.events if t < tick + period)
            return sum(live, Fraction(0))
        index, elapsed = divmod(t, self.limit.ticks)
        left = 1 - Fraction(elapsed, self.limit.ticks)
        return self.window(index - 1) * left + self.window(index)

    def calendar(self, t: int) -> Fraction:
        """All that was added in the civil window of an instant."""
        total = sum((amount for _, amount in self.events), Fraction(0))
        if self.loose_until is not None:
            return total if t < self.loose_until else Fraction(0)
        key = window_key(self.limit.algorithm, t)
        inside = (amount for tick, amount in self.events if window_key(self.limit.algorithm, tick) == key)
        return sum(inside, Fraction(0))

    def window(self, index: int) -> Fraction:
        """All that was added in one window of the clock."""
        p = self.limit.ticks
        inside = (amount for tick, amount in self.events if tick // p == index)
        return sum(inside, Fraction(0))

    def units(self, t: int) -> int:
        """Requests are whole, so only whole units matter to what is admitted."""
        if self.limit.algorithm in BUCKETS:
            return math.ceil(self.used(t))
        return math.floor(self.used(t))

    def wait_us(self, now: int, most: int) -> int:
        """Time until at most this many units are used, without further requests.

        Found by search: usage only falls without requests.
        """
        if self.units(self.tick) <= most:
            return 0
        step = 1
        while self.units(self.tick + step) > most:
            step *= 2
        low, high = self.tick, self.tick + step
        while high - low > 1:
            middle = (low + high) // 2
            if self.units(middle) > most:
                low = middle
            else:
                high = middle
        return max(0, high * self.limit.resolution - now)


@dataclass(frozen=True)
class State:
    """What survives between two calls."""

    limit: Limit
    events: tuple[Event, ...]
    time: int
    expires_us: int
    loose: bool = False
    """Rebased by a call under another limit, which did not know the calendar."""

    def rebased(self, tick: int) -> tuple[Event, ...]:
        """A clock that had jumped far ahead must not hold the counter there."""
        there = View(self.limit, self.events, self.time)
        if is_calendar(self.limit.algorithm):
            return ((tick, there.used(self.time)),)
        p = self.limit.ticks
        index = self.time // p
        if self.limit.algorithm == "fixed_window":
            return ((tick, there.window(index)),)
        if self.limit.algorithm == "sliding_window_counter":
            return ((tick - p, there.window(index - 1)), (tick, there.window(index)))
        shift = tick - self.time
        return tuple((at + shift, amount) for at, amount in self.events)


@dataclass(frozen=True)
class Receipt:
    """Where an admitted cost was charged, so that it can be given back there."""

    shape: tuple[str, int, int, int]
    tick: int
    cost: int


@dataclass(frozen=True)
class Answer:
    """One decision. ``delay`` is in seconds, the waits are in microseconds."""

    allowed: bool
    limit: int
    remaining: int
    retry_us: int | None
    reset_us: int
    delay: Fraction
    reason: str
    receipt: Receipt | None = None


class Naive:
    """One counter, and the limit it runs under now."""

    def __init__(self, algorithm: str, count: int, period_us: int, burst: int | None) -> None:
        self._limit = Limit(algorithm, count, period_us, burst)
        self._state: State | None = None
        self._latest = 0

    def see(self, now: int) -> None:
        """The store's clock says so, whichever counter it was read for.

        A counter may be forgotten once nothing of it is used. So when the clock
        steps back, one that could have been forgotten must have been.
        """
        state = self._state
        if now < self._latest and state is not None and state.expires_us <= self._latest:
            self._state = None
        self._latest = now

    def limit(self, algorithm: str, count: int, period_us: int, burst: int | None) -> None:
        """Changing a limit must not hand out a fresh quota: the state stays."""
        self._limit = Limit(algorithm, count, period_us, burst)

    def take(self, now: int, cost: int) -> Answer:
        """Consumes when admitted; a denied take consumes nothing.

        It does keep a rebase: were that forgotten, a full counter that is ahead of
        the clock would be rebased again at every call and stay full.
        """
        self.see(now)
        self._rebase(now)
        before = self._ask(now, cost)
        if not before.allowed:
            return before
        if cost > 0:
            self._add(now, cost)
        view = self._view(now)
        receipt = Receipt(self._limit.shape, view.tick, cost)
        return replace(self._ask(now, 0), delay=before.delay, receipt=receipt)

    def peek(self, now: int, cost: int) -> Answer:
        """The answer take would give, except that nothing is consumed."""
        self.see(now)
        return self._ask(now, cost)

    def reset(self) -> None:
        """Forgets the counter."""
        self._state = None

    def charge(self, now: int, cost: int, debt: int = 0) -> None:
        """What was used already cannot be refused, so this may leave a debt: at most one limit beyond the limit, or
        less where the caller says how much."""
        self.see(now)
        most = self._limit.capacity if debt == 0 else min(debt, self._limit.capacity)
        cost = min(cost, self._limit.capacity + most - self.units(now))
        if cost > 0 and self._limit.count > 0:
            self._add(now, cost)

    def give_back(self, receipt: Receipt, now: int, amount: int) -> None:
        """Returns units to where they were taken, unless time returned them."""
        if not 0 <= amount <= receipt.cost:
            raise ValueError("more given back than taken")
        self.see(now)
        self._rebase(now)
        state = self._state
        if state is None or now >= state.expires_us or self._limit.count == 0:
            return
        if not self._limit.shape == state.limit.shape == receipt.shape:
            return
        view = self._view(now)
        p = self._limit.ticks
        at = view.tick
        if self._limit.algorithm in BUCKETS:
            refilled = max(0, view.tick - receipt.tick) * Fraction(self._limit.count, p)
            left = max(Fraction(0), min(Fraction(amount), receipt.cost - refilled))
            give = min(left, view.used(view.tick))
        elif self._limit.algorithm in LOGS:
            at = receipt.tick
            here = sum((a for tick, a in view.events if tick == at), Fraction(0))
            give = min(Fraction(amount), here) if view.tick < at + p else Fraction(0)
        elif is_calendar(self._limit.algorithm):
            at = receipt.tick
            same = window_key(self._limit.algorithm, at) == window_key(self._limit.algorithm, view.tick)
            give = min(Fraction(amount), view.used(view.tick)) if same else Fraction(0)
        else:
            at = receipt.tick
            reach = 0 if self._limit.algorithm == "fixed_window" else 1
            age = view.tick // p - at // p
            found = view.window(at // p) if 0 <= age <= reach else Fraction(0)
            give = min(Fraction(amount), found)
        if give > 0:
            self._store((*view.events, (at, -give)), view.tick, now)

    def renew(self, receipt: Receipt, now: int) -> Answer:
        """A holder that goes on: its units count from now, as long as they have not ended."""
        self.see(now)
        self._rebase(now)
        state = self._state
        found = None
        if state is not None and now < state.expires_us and self._limit.count > 0:
            view = self._view(now)
            here = sum((a for tick, a in view.events if tick == receipt.tick), Fraction(0))
            same = self._limit.shape == state.limit.shape == receipt.shape
            if same and self._limit.algorithm in LOGS and view.tick < receipt.tick + self._limit.ticks:
                found = view if here >= receipt.cost else None
        if found is None:
            return replace(self._ask(now, 0), allowed=False, retry_us=None)
        moved = ((receipt.tick, -Fraction(receipt.cost)), (found.tick, Fraction(receipt.cost)))
        self._store((*found.events, *moved), found.tick, now)
        return replace(self._ask(now, 0), receipt=replace(receipt, tick=found.tick))

    def units(self, now: int) -> int:
        """Whole units used now, to bound a debt."""
        view = self._view(now)
        return view.units(view.tick)

    def lag_us(self, now: int) -> int:
        """How far the counter is ahead of a clock that went back."""
        state = self._state
        if state is None or now >= state.expires_us:
            return 0
        return max(0, state.time * state.limit.resolution - now)

    def _rebase(self, now: int) -> None:
        state = self._state
        if state is None or self._limit.count == 0 or now >= state.expires_us:
            return
        tick = now // state.limit.resolution
        if state.time > tick + state.limit.ticks:
            events = state.rebased(tick)
            loose = self._is_loose(state)
            view = View(state.limit, events, tick, tick + state.limit.ticks if loose else None)
            self._state = State(state.limit, events, tick, now + view.wait_us(now, 0), loose)

    def _is_loose(self, state: State) -> bool:
        return is_calendar(state.limit.algorithm) and state.limit.shape != self._limit.shape

    def _view(self, now: int) -> View:
        """Expiry, a clock that went back and a rebase, all in one place."""
        state = self._state
        if state is None or now >= state.expires_us:
            return View(self._limit, (), now // self._limit.resolution)
        tick = now // state.limit.resolution
        if state.time > tick + state.limit.ticks:
            until = tick + state.limit.ticks if self._is_loose(state) else None
            return View(state.limit, state.rebased(tick), tick, until)
        until = state.time + state.limit.ticks if state.loose else None
        return View(state.limit, state.events, max(tick, state.time), until)

    def _ask(self, now: int, cost: int) -> Answer:
        capacity = self._limit.capacity
        none = Fraction(0)
        if self._limit.count == 0:
            return Answer(False, 0, 0, None, 0, none, "blocked")
        view = self._view(now)
        used = view.units(view.tick)
        remaining = max(0, capacity - used)
        reset = view.wait_us(now, 0)
        if cost > capacity:
            reason = "cost_exceeds_limit"
            return Answer(False, capacity, remaining, None, reset, none, reason)
        if cost > 0 and used + cost > capacity:
            retry = view.wait_us(now, capacity - cost)
            return Answer(False, capacity, remaining, retry, reset, none, "limited")
        delay = none
        if self._limit.algorithm == "leaky_bucket":
            same = view.limit.shape == self._limit.shape
            level = view.used(view.tick) if same else Fraction(used)
            delay = level * self._limit.period_us / self._limit.count / SECOND
        return Answer(True, capacity, remaining, 0, reset, delay, "ok")

    def _add(self, now: int, cost: int) -> None:
        view = self._view(now)
        if view.limit.shape == self._limit.shape:
            tick, events = view.tick, view.events
        else:
            tick = now // self._limit.resolution
            events = ((tick, Fraction(view.units(view.tick))),)
        self._store((*events, (tick, Fraction(cost))), tick, now)

    def _store(self, events: tuple[Event, ...], tick: int, now: int) -> None:
        expires = now + View(self._limit, events, tick).wait_us(now, 0)
        self._state = State(self._limit, events, tick, expires)
