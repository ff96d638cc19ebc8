"""Random schedules, and the comparison of a store with the naive model.

Times jump forwards and backwards, costs and periods are huge or tiny, limits and algorithms change in the middle,
charges leave debts, and reservations are given back early or late. Virtual time, so nothing sleeps.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import civil
import naive
import pytest
from hypothesis import strategies as st

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.stores.port import Member, Op, Request, Store
from crestgate.testing import FakeClock

__all__ = ["LIMIT_KINDS", "START", "Call", "LimitNumbers", "Pair", "calls", "changing", "limits", "run_on"]

LIMIT_KINDS = (*naive.ALGORITHMS, naive.CONCURRENCY, "calendar")

START = 1_700_000_000_000_000
PERIODS = (1, 7, 1_000, 1_000_000, 60_000_000, 999_999_937, 86_400_000_000, 31_536_000_000_000)
COUNTS = (1, 2, 3, 10, 97, 1000, 1_000_003)

LimitNumbers = tuple[str, int, int, int | None]
Call = tuple[str, float, float]


@st.composite
def limits(draw: st.DrawFn, algorithm: str | None = None) -> LimitNumbers:
    name = algorithm or draw(st.sampled_from(LIMIT_KINDS))
    count = draw(st.sampled_from(COUNTS) | st.integers(1, 50))
    if name == "calendar":
        name = civil.calendar(draw(st.sampled_from(civil.CALENDAR_UNITS)), draw(st.sampled_from(civil.CALENDAR_ZONES)))
        return name, count, civil.nominal_us(name), None
    period = draw(st.sampled_from(PERIODS) | st.integers(1, 10**9))
    burst = draw(st.none() | st.integers(1, 2 * count)) if name in naive.BUCKETS else None
    return name, count, period, burst


def calls() -> st.SearchStrategy[list[Call]]:
    """An operation, how far the clock moves before it (in periods), and its share of the capacity."""
    share = st.sampled_from((0.0, 0.001, 0.1, 0.3, 0.5, 1.0, 1.1)) | st.floats(0, 1.2)
    move = st.sampled_from((0.0, 0.0, 1e-9, 0.1, 0.5, 1.0, 2.5)) | st.floats(-0.5, 2.0) | st.just(-3.0)
    operation = st.sampled_from(("take", "take", "take", "peek", "charge", "give_back", "renew", "reset", "retry"))
    return st.lists(st.tuples(operation, move, share), min_size=1, max_size=25)


class Pair:
    """A store and the model, with the same calls at the same times."""

    def __init__(self, store: Store, clock: FakeClock, limit: LimitNumbers) -> None:
        self.store, self.clock = store, clock
        self.limit = limit
        self.algorithm = self.compiled(limit)
        self.model = naive.Naive(*limit)
        self.receipts: list[tuple[Algorithm, int, int, naive.Receipt]] = []
        self.retry = 0

    def compiled(self, limit: LimitNumbers) -> Algorithm:
        name, count, period, burst = limit
        if civil.is_calendar(name):
            return build(Limit.parse(f"{count}/{name}"), "pair")
        return build(Limit(count, period / 1_000_000, burst, name), "pair")

    def change(self, limit: LimitNumbers) -> None:
        self.limit = limit
        self.algorithm = self.compiled(limit)
        self.model.limit(*limit)

    def step(self, operation: str, move: float, share: float) -> None:
        ticks = self.retry if operation == "retry" else round(move * self.limit[2])
        self.clock.advance(ticks / 1_000_000)
        now = self.clock.ticks()
        self.model.see(now)
        self.store.apply([])  # which reads the clock, too
        cost = min(round(share * int(self.algorithm.capacity)), 2**31 - 1)
        if operation in ("take", "retry", "peek"):
            self.compare(operation, now, cost if operation != "retry" else 1)
        elif operation == "charge":
            debt = cost // 3  # 0 means a full limit
            self.model.charge(now, cost, debt)
            self.ask(Op.CHARGE, Member("key", self.algorithm, cost, amount=debt))
        elif operation == "reset":
            self.model.reset()
            self.ask(Op.RESET, Member("key", self.algorithm, 0))
        elif self.receipts and operation == "renew":
            self.renew(now)
        elif self.receipts:
            taker, tick, taken, receipt = self.receipts.pop()
            amount = min(round(share * taken), taken)
            if self.model.lag_us(now):
                return  # a give-back may empty a counter that is ahead of the clock: there the two may differ
            self.model.give_back(receipt, now, amount)
            if taker.shape == self.algorithm.shape:
                self.ask(Op.GIVE_BACK, Member("key", self.algorithm, taken, True, tick, amount))

    def renew(self, now: int) -> None:
        taker, tick, taken, receipt = self.receipts.pop(0)
        if taker.shape != self.algorithm.shape or not taken:
            return
        expected = self.model.renew(receipt, now)
        tick, decision = self.ask(Op.RENEW, Member("key", self.algorithm, taken, True, tick))
        got = decision.allowed, decision.remaining, decision.reset_us
        assert got == (expected.allowed, expected.remaining, expected.reset_us)
        if expected.receipt is not None:
            self.receipts.append((taker, tick, taken, expected.receipt))

    def compare(self, operation: str, now: int, cost: int) -> None:
        expected = self.model.peek(now, cost) if operation == "peek" else self.model.take(now, cost)
        op = Op.PEEK if operation == "peek" else Op.TAKE
        tick, decision = self.ask(op, Member("key", self.algorithm, cost))
        retry = 0 if decision.allowed else decision.wait_us
        got = (decision.allowed, decision.limit, decision.remaining, retry, decision.reset_us, decision.reason)
        wanted = (expected.allowed, expected.limit, expected.remaining, expected.retry_us, expected.reset_us)
        assert got == (*wanted, expected.reason)
        assert decision.delay == pytest.approx(float(expected.delay), rel=1e-12)
        assert isinstance(expected.delay, Fraction)
        self.retry = expected.retry_us or 0
        if op is Op.TAKE and decision.allowed and expected.receipt is not None:
            self.receipts.append((self.algorithm, tick, cost, expected.receipt))

    def ask(self, op: Op, member: Member) -> tuple[int, Decision]:
        outcome = self.store.apply([Request(op, [member])])[0][0]
        return outcome.tick, outcome.decision


def run_on(
    make_store: Callable[[FakeClock], Store], limit: LimitNumbers, script: list[Call], changes: dict[int, LimitNumbers]
) -> Store:
    """Run a schedule on a new store and the model; returns the closed store if they agreed."""
    clock = FakeClock(START / 1_000_000)
    store = make_store(clock)
    pair = Pair(store, clock, limit)
    for number, (operation, move, share) in enumerate(script):
        if number in changes:
            pair.change(changes[number])
        pair.step(operation, move, share)
    store.close()
    return store


def changing(data: st.DataObject, algorithm: str) -> tuple[LimitNumbers, list[Call], dict[int, LimitNumbers]]:
    """A schedule on which time does not run backwards and the limit changes several times."""
    forward = [(op, abs(move), share) for op, move, share in data.draw(calls())]
    changes = data.draw(st.dictionaries(st.integers(1, 24), limits(), max_size=4))
    return data.draw(limits(algorithm)), forward, changes
