"""Properties of every algorithm that SPEC promises, tested with random inputs."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Member, Op, Outcome, Request
from crestgate.testing import FakeClock
from example_counts import examples

BUCKETS = ("token_bucket", "leaky_bucket", "gcra")
WINDOWS = ("fixed_window", "sliding_window_log", "sliding_window_counter")
every_algorithm = pytest.mark.parametrize("algorithm", BUCKETS + WINDOWS)
PERIODS = st.sampled_from((1, 7, 1_000, 999_983, 1_000_000, 60_000_000, 86_400_000_000)) | st.integers(1, 10**10)


@st.composite
def limits(draw: st.DrawFn, algorithm: str, most: int = 1000) -> Limit:
    count = draw(st.integers(1, 20) | st.integers(1, most))
    burst = draw(st.none() | st.integers(1, 2 * count)) if algorithm in BUCKETS else None
    return Limit(count, draw(PERIODS) / 1_000_000, burst, algorithm)


class World:
    """A memory store on virtual time, with one counter."""

    def __init__(self, limit: Limit, start: int) -> None:
        self.clock = FakeClock()
        self.clock.advance(start / 1_000_000)
        self.store = MemoryStore(clock=self.clock)
        self.algorithm = build(limit, "counter")

    def ask(self, op: Op, cost: int = 1, tick: int = 0, amount: int = 0) -> Outcome:
        member = Member("key", self.algorithm, cost, True, tick, amount)
        return self.store.apply([Request(op, [member])])[0][0]

    def take(self, cost: int = 1) -> Decision:
        return self.ask(Op.TAKE, cost).decision

    def peek(self, cost: int = 1) -> Decision:
        return self.ask(Op.PEEK, cost).decision

    def advance_us(self, microseconds: int) -> None:
        self.clock._ticks += microseconds


@st.composite
def worlds(draw: st.DrawFn, algorithm: str) -> World:
    """A counter with some history: takes and pauses, jumps back among them."""
    limit = draw(limits(algorithm))
    world = World(limit, draw(st.integers(1_600_000_000_000_000, 1_800_000_000_000_000)))
    period = limit.period_us
    pauses = st.integers(0, period) | st.integers(-period // 2, 0) | st.just(0)
    for pause, cost in draw(st.lists(st.tuples(pauses, st.integers(0, limit.capacity)), max_size=12)):
        world.advance_us(pause)
        world.take(cost)
    return world


@every_algorithm
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_retry_after_is_exact(algorithm: str, data: st.DataObject) -> None:
    world = data.draw(worlds(algorithm))
    cost = data.draw(st.integers(1, world.algorithm.capacity))
    denied = world.peek(cost)
    if denied.allowed:
        return
    assert denied.wait_us is not None
    assert denied.wait_us > 0
    world.advance_us(denied.wait_us - 1)
    assert not world.peek(cost).allowed, "one tick before retry_after"
    world.advance_us(1)
    assert world.peek(cost).allowed, "at retry_after"


@every_algorithm
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_denial_changes_nothing(algorithm: str, data: st.DataObject) -> None:
    world = data.draw(worlds(algorithm))
    cost = data.draw(st.integers(1, 2 * world.algorithm.capacity))
    costs = st.integers(0, world.algorithm.capacity)
    later = data.draw(st.lists(st.tuples(st.integers(0, world.algorithm.limit.period_us), costs), max_size=6))
    if world.peek(cost).allowed:
        return
    entry = world.store.table.find("counter", "key")
    before = None if entry is None else (entry.time, entry.a, entry.b)
    now = world.clock.ticks()
    assert not world.take(cost).allowed
    entry = world.store.table.find("counter", "key")
    if entry is not None and before is not None and before[0] - now <= world.algorithm.period * world.algorithm.tick:
        assert (entry.time, entry.a, entry.b) == before
    for pause, other in later:  # later requests are decided as if it had not happened
        world.advance_us(pause)
        assert world.peek(other).allowed == world.take(other).allowed


@every_algorithm
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_remaining_is_exact(algorithm: str, data: st.DataObject) -> None:
    world = data.draw(worlds(algorithm))
    remaining = world.peek(0).remaining
    if remaining:
        assert world.peek(remaining).allowed or remaining > 2**31 - 1
    assert not world.peek(remaining + 1).allowed
    for more in range(min(remaining, 30)):
        assert world.take().remaining == remaining - more - 1
    if remaining <= 30:
        assert not world.take().allowed


@every_algorithm
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_reset_after_is_exact(algorithm: str, data: st.DataObject) -> None:
    world = data.draw(worlds(algorithm))
    used = world.peek(0)
    if used.remaining == world.algorithm.capacity:
        assert used.reset_us == 0
        return
    world.advance_us(used.reset_us - 1)
    assert world.peek(0).remaining < world.algorithm.capacity
    world.advance_us(1)
    assert world.peek(0).remaining == world.algorithm.capacity


Event = tuple[int, int]


def bound_of(algorithm: str, limits_used: list[Limit], span: int) -> Fraction:
    """The maximum admitted in any span of this length; of changed limits, that of the largest."""
    if algorithm in BUCKETS:
        rate = max(Fraction(limit.count, limit.period_us) for limit in limits_used)
        return max(limit.capacity for limit in limits_used) + rate * span
    shortest = min(limit.period_us for limit in limits_used)
    periods = span // shortest + 1  # that many half-open periods cover the closed span
    most = max(limit.count for limit in limits_used)
    return Fraction(most * periods if algorithm == "sliding_window_log" else most * (periods + 1))


def most_over(algorithm: str, limits_used: list[Limit], events: list[Event]) -> list[tuple[int, int, Fraction]]:
    """The spans from one admission to another in which more passed than the bound."""
    over = []
    for first in range(len(events)):
        total = 0
        for last in range(first, len(events)):
            total += events[last][1]
            span = events[last][0] - events[first][0]
            if total > bound_of(algorithm, limits_used, span):
                over.append((total, span, bound_of(algorithm, limits_used, span)))
    return over


@every_algorithm
@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_bound_is_never_exceeded(algorithm: str, data: st.DataObject) -> None:
    """With reservations that settle for less, early and late, and limits that change in the middle."""
    limit = data.draw(limits(algorithm, 20))
    seen = [limit]
    world = World(limit, 1_700_000_000_000_000)
    admitted: list[list[int]] = []
    open_reservations: list[tuple[int, int, int, tuple[str, int, int, int]]] = []
    for _ in range(data.draw(st.integers(1, 30))):
        world.advance_us(data.draw(st.just(0) | st.integers(0, limit.period_us)))
        action = data.draw(st.sampled_from(("take", "take", "take", "settle", "settle", "change")))
        if action == "take":
            cost = data.draw(st.integers(1, world.algorithm.capacity))
            outcome = world.ask(Op.TAKE, cost)
            if outcome.decision.allowed:
                open_reservations.append((len(admitted), outcome.tick, cost, world.algorithm.shape))
                admitted.append([world.clock.ticks(), cost])
        elif action == "settle" and open_reservations:
            which = data.draw(st.integers(0, len(open_reservations) - 1))
            number, tick, cost, shape = open_reservations.pop(which)
            used = data.draw(st.integers(0, cost))
            if shape == world.algorithm.shape:
                world.ask(Op.GIVE_BACK, cost, tick, cost - used)
            admitted[number][1] = used
        elif action == "change" and data.draw(st.integers(0, 3)) == 0:
            limit = data.draw(limits(algorithm, 20))
            seen.append(limit)
            world.algorithm = build(limit, "counter")
    events = [(at, cost) for at, cost in admitted]
    assert most_over(algorithm, seen, events) == []


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_chains_are_atomic(data: st.DataObject) -> None:
    """A chain is admitted when all its limits admit, charges all or none, and waits as long as the slowest."""
    names = data.draw(st.lists(st.sampled_from(BUCKETS + WINDOWS), min_size=2, max_size=4))
    chain = [build(data.draw(limits(name, 20)), f"limit {i}") for i, name in enumerate(names)]
    clock = FakeClock(1_700_000_000)
    store = MemoryStore(clock=clock)

    def ask(op: Op, algorithm: list[Algorithm], cost: int) -> list[Decision]:
        request = Request(op, [Member("key", each, cost) for each in algorithm])
        return [outcome.decision for outcome in store.apply([request])[0]]

    for pause, cost in data.draw(st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 25)), max_size=15)):
        clock._ticks += pause
        alone = [ask(Op.PEEK, [each], cost)[0] for each in chain]
        before = [ask(Op.PEEK, [each], 0)[0].remaining for each in chain]
        together = ask(Op.TAKE, chain, cost)
        assert [d.allowed for d in together] == [d.allowed for d in alone]
        after = [ask(Op.PEEK, [each], 0)[0].remaining for each in chain]
        if all(d.allowed for d in together):
            assert after == [left - cost for left in before]
        else:
            assert after == before
            waits = [d.wait_us for d in together if not d.allowed]  # one that admits says how much is queued
            known = [wait for wait in waits if wait is not None]
            if len(known) == len(waits):
                clock._ticks += max(known) - 1
                assert not all(d.allowed for d in ask(Op.PEEK, chain, cost))
                clock._ticks += 1
                assert all(d.allowed for d in ask(Op.PEEK, chain, cost))
