"""Requests of several limits in the memory store: its shortcut for the usual ones decides as decide.py does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.core.algorithms import build
from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.limit import Limit
from crestgate.core.state import State
from crestgate.stores.decide import StoredCounter, decide
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Member, Op, Outcome, Request
from crestgate.testing import FakeClock
from example_counts import examples

START_US = 1_700_000_000_000_000
ALGORITHMS = (
    *("fixed_window", "sliding_window_counter", "sliding_window_log"),
    *("token_bucket", "leaky_bucket", "gcra"),
)
LIMITS = [build(Limit(count, 10, algorithm=name), name) for name in ALGORITHMS for count in (2, 3)]
"""Two to a counter's name, as after a change of the limit."""


class PlainCounter(StoredCounter):
    """A counter that is never dropped."""

    def __init__(self) -> None:
        self.state: State | None = None
        self.writer: Algorithm | None = None

    def replace(self, state: State, algorithm: Algorithm) -> None:
        self.state, self.writer = state, algorithm

    def changed(self) -> None:
        """Nothing to do."""

    def forget(self) -> None:
        self.state = self.writer = None


def numbers(outcomes: list[Outcome]) -> list[tuple[object, ...]]:
    return [(repr(one.decision), one.tick if one.decision.allowed else 0) for one in outcomes]


members = st.builds(
    Member,
    st.sampled_from("ab"),
    st.sampled_from(LIMITS),
    st.sampled_from([0, 1, 1, 1, 2, 3]),
    st.sampled_from([True, True, True, False]),
)
chains = st.lists(members, min_size=1, max_size=3, unique_by=lambda member: (member.key, member.algorithm.name))
steps_us = st.sampled_from([0, 0, 1, 400_000, 3_000_000, 9_999_999, 10_000_000, 25_000_000, -4_000_000, -60_000_000])


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(chains, steps_us), min_size=1, max_size=40))
def test_chains_are_decided_as_on_plain_counters(requests: list[tuple[list[Member], int]]) -> None:
    clock = FakeClock(START_US // 1_000_000)
    store = MemoryStore(100, clock)
    counters: dict[tuple[str, str], PlainCounter] = {}
    latest = START_US
    for chain, step_us in requests:
        clock.advance(step_us / 1_000_000)
        now = clock.ticks()
        if now < latest:  # the store drops what had expired before the clock stepped back
            for counter in counters.values():
                if counter.state is not None and counter.writer is not None:
                    if counter.writer.used(counter.state, latest) == 0:
                        counter.forget()
        latest = now
        found = [counters.setdefault((one.key, one.algorithm.name), PlainCounter()) for one in chain]
        expected = decide(Op.TAKE, chain, found, now)
        assert numbers(store.apply([Request(Op.TAKE, chain)])[0]) == numbers(expected)


def test_counter_that_has_expired_when_another_is_new() -> None:
    clock = FakeClock(START_US // 1_000_000)
    store = MemoryStore(100, clock)
    old, new = LIMITS[0], LIMITS[2]
    store.apply([Request(Op.TAKE, [Member("a", old, 2)])])
    clock.advance(60)
    for remaining in (1, 0):
        outcomes = store.apply([Request(Op.TAKE, [Member("a", old, 1), Member("a", new, 1)])])[0]
        assert [(one.decision.allowed, one.decision.remaining) for one in outcomes] == [(True, remaining)] * 2
    assert store.table.size == 2
