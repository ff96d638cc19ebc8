"""`try_decide` decides without waiting, and exactly as `decide`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crestgate import AsyncLimiter, Decision, PressureEvent, RequestContext
from crestgate.limiter.pending_check import PendingCheck
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Actor
from crestgate.rules.records import edit_of
from crestgate.stores.port import Op
from crestgate.testing import FakeClock
from unit.rules.cases import NOW_US, rules_of
from unit.rules.memory_repository import MemoryRepository

NEVER = 3600.0


class LimiterCase:
    """A limiter with rules on a local store, and its pressure events."""

    def __init__(self, rules: str, store: str) -> None:
        self.clock = FakeClock(NOW_US / 1_000_000)
        repository = MemoryRepository(self.clock)
        repository.write([edit_of(rule) for rule in rules_of(rules)], Actor("test"))
        self.events: list[PressureEvent] = []
        self.limiter = AsyncLimiter(
            store, clock=self.clock, catalog=Catalog([repository], NEVER), on_pressure=self.events.append
        )

    def prepare(self, checks: list[tuple[RequestContext, int]]) -> list[PendingCheck]:
        return [self.limiter.prepare_request(Op.TAKE, context, cost) for context, cost in checks]

    def decide(self, checks: list[tuple[RequestContext, int]]) -> list[Decision]:
        return asyncio.run(self.limiter.decide(self.prepare(checks)))

    def try_decide(self, checks: list[tuple[RequestContext, int]]) -> list[Decision] | None:
        return self.limiter.try_decide(self.prepare(checks))

    def close(self) -> None:
        asyncio.run(self.limiter.aclose())
        self.limiter.catalog.close()


@pytest.fixture(params=["memory", "shared"])
def make_case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], LimiterCase]]:
    cases: list[LimiterCase] = []

    def make(rules: str) -> LimiterCase:
        url = "memory://" if request.param == "memory" else f"shared://{tmp_path}/counters-{len(cases)}?max_keys=1000"
        cases.append(LimiterCase(rules, url))
        return cases[-1]

    yield make
    for one in cases:
        one.close()


def user(name: str) -> RequestContext:
    return RequestContext(user=name)


RULES = [
    "a user limit=5",
    "a user limit=5 algorithm=gcra burst=3",
    "a user limit=5 algorithm=fixed_window",
    "a user limit=5 algorithm=sliding_window_log",
    "a user limit=4 algorithm=leaky_bucket",
    "a user limit=10 algorithm=token_bucket\nb user for=2 limit=2",
    "a user limit=0",
    "a user limit=5\nb global limit=9",
    "a user limit=5\ns user shadow limit=1",
    "g ip limit=1",
]
steps = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("123"), st.sampled_from([0, 1, 1, 1, 3, 50])), min_size=1, max_size=4),
        st.sampled_from([0.0, 0.001, 11.0, 61.0]),
    ),
    max_size=8,
)


@pytest.mark.parametrize("rules", RULES)
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_try_decide_equals_decide(
    make_case: Callable[[str], LimiterCase], rules: str, steps: list[tuple[list[tuple[str, int]], float]]
) -> None:
    one, other = make_case(rules), make_case(rules)
    for batch, seconds in steps:
        checks = [(user(name), cost) for name, cost in batch]
        assert one.try_decide(checks) == other.decide(checks)
        for each in (one, other):
            each.clock.advance(seconds)
    assert one.events == other.events


def test_existing_counters_are_decided_without_waiting(make_case: Callable[[str], LimiterCase]) -> None:
    one = make_case("a user limit=5")
    one.decide([(user("1"), 1), (user("2"), 1)])
    decided = one.try_decide([(user("1"), 1), (user("2"), 4), (user("2"), 1), (user("1"), 0)])
    assert decided is not None
    assert [(d.allowed, d.remaining) for d in decided] == [(True, 3), (True, 0), (False, 0), (True, 3)]


def test_fresh_counter_in_batch_is_counted_once(tmp_path: Path) -> None:
    one = LimiterCase("a user limit=5", f"shared://{tmp_path}/counters?max_keys=1000")
    one.decide([(user("1"), 1)])
    decided = one.try_decide([(user("1"), 1), (user("new"), 1)])
    assert decided is not None
    assert [decision.remaining for decision in decided] == [3, 4]
    assert [decision.remaining for decision in one.decide([(user("1"), 0), (user("new"), 0)])] == [3, 4]
    one.close()


@pytest.mark.parametrize("cost", [-1, 2**31])
def test_invalid_cost_is_refused(make_case: Callable[[str], LimiterCase], cost: int) -> None:
    one = make_case("a user limit=5")
    with pytest.raises(ValueError, match="cost"):
        one.try_decide([(user("1"), cost)])
