"""Histories with a clock that steps forwards and back: every store decides as the naive model, call by call.

Each call touches one of several counters; the others drain meanwhile, and the store may sweep, expire or keep them. A
counter that had drained before a step back must not count again after it, on any store.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import naive
import pytest

from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.stores.factory import open_store
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Member, Op, Request, Store
from crestgate.stores.shared import SharedStore
from crestgate.testing import FakeClock
from databases import open_at, url_of

START = 1_700_000_000_000_000
SECOND = 1_000_000
PERIOD = 10 * SECOND
HISTORIES = {"memory": 30, "shared": 20, "redis": 12, "sqlite": 8, "mariadb": 2, "postgres": 2}
"""A database flushes its log to the disk at each call, so it is given fewer."""
CALLS = 120


@pytest.fixture(params=HISTORIES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[FakeClock], Store]:
    if kind == "memory":
        return lambda clock: MemoryStore(clock=clock)
    if kind == "shared":
        return lambda clock: SharedStore(f"{tmp_path}/{uuid4()}", max_keys=500, timeout_ms=10_000, clock=clock)
    if kind == "redis":
        url = request.getfixturevalue("redis_server").url
        return lambda clock: open_store(f"{url}?prefix={uuid4()}&timeout_ms=10000", clock)
    url = url_of(kind, request)
    return lambda clock: open_at(url, clock)


class Counter:
    """One counter of a history, and its model."""

    def __init__(self, key: str, algorithm: str) -> None:
        self.key = key
        self.model = naive.Naive(algorithm, 5, PERIOD, None)
        self.algorithm = build(Limit(5, PERIOD // SECOND, None, algorithm), "steps")

    def expected(self, op: Op, now: int, cost: int) -> tuple[object, ...]:
        answer = self.model.take(now, cost) if op is Op.TAKE else self.model.peek(now, cost)
        return answer.allowed, answer.remaining, answer.retry_us, answer.reset_us

    def decided(self, store: Store, op: Op, cost: int) -> tuple[object, ...]:
        ((outcome,),) = store.apply([Request(op, [Member(self.key, self.algorithm, cost)])])
        decision = outcome.decision
        return decision.allowed, decision.remaining, 0 if decision.allowed else decision.wait_us, decision.reset_us


def steps(rolls: random.Random) -> int:
    """How far the clock moves before a call, in microseconds."""
    draw = rolls.random()
    if draw < 0.6:
        return rolls.randint(0, PERIOD // 2)
    if draw < 0.8:
        return rolls.randint(PERIOD, 3 * PERIOD)
    return -rolls.choice((rolls.randint(1, PERIOD), rolls.randint(PERIOD, 4 * PERIOD)))


def test_histories_with_clock_steps(
    kind: str, make_store: Callable[[FakeClock], Store], report: Callable[[str], None]
) -> None:
    calls = forgotten = 0
    for seed in range(HISTORIES[kind]):
        rolls = random.Random(seed)
        clock = FakeClock(START / SECOND)
        store = make_store(clock)
        counters = [Counter(f"key-{number}", rolls.choice(naive.ALGORITHMS)) for number in range(6)]
        history = []
        for number in range(CALLS):
            clock.advance(steps(rolls) / SECOND)
            now = clock.ticks()
            for counter in counters:
                before = counter.model._state
                counter.model.see(now)
                forgotten += before is not None and counter.model._state is None
            if rolls.random() < 0.1:  # a new counter, for which a store may evict another
                new_key = Counter(f"stranger-{number}", "fixed_window")
                new_key.decided(store, Op.TAKE, 1)
            counter, cost = rolls.choice(counters), rolls.randint(1, 5)
            op = Op.TAKE if rolls.random() < 0.8 else Op.PEEK
            expected = counter.expected(op, now, cost)
            history.append((now - START, counter.key, counter.algorithm.limit, op, cost, expected))
            found = counter.decided(store, op, cost)
            assert found == expected, (seed, found, [entry for entry in history if entry[1] == counter.key])
            calls += 1
        store.close()
    assert forgotten > 0
    report(f"{calls} calls agreed; {forgotten} counters were as good as new before a step back, and stayed so")
