"""Random schedules of classes: limits of one counter with different ceilings, against the naive model.

Every call is of a random class. The model keeps the history of the counter and knows no states, so a class that lost
usage, added some, or had a wait of another class would differ from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import naive
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from conformance.schedules import LIMIT_KINDS, START, Call, LimitNumbers, Pair, calls, limits
from crestgate.stores.factory import open_store
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Store
from crestgate.stores.shared import SharedStore
from crestgate.testing import FakeClock
from databases import open_at, url_of
from example_counts import examples

MakeStore = Callable[[FakeClock], Store]

EXAMPLES = {"memory": 100, "shared": 60, "sqlite": 20, "redis": 20}
SHARES = (1, 10, 50, 80, 90, 99)
"""Ceilings of further classes, in percent of the highest."""


@pytest.fixture(scope="module", params=EXAMPLES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def make_store(kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MakeStore:
    if kind == "memory":
        return lambda clock: MemoryStore(clock=clock)
    if kind == "shared":
        folder, numbers = tmp_path_factory.mktemp("shared"), itertools.count()

        def shared(clock: FakeClock) -> Store:
            path = folder / f"counters-{next(numbers)}"
            return SharedStore(str(path), max_keys=2, timeout_ms=10_000, clock=clock)

        return shared
    if kind == "sqlite":
        url = url_of(kind, request)
        return lambda clock: open_at(url, clock)
    server: str = request.getfixturevalue("redis_server").url
    return lambda clock: open_store(f"{server}?prefix={uuid4()}&timeout_ms=10000", clock)


def class_of(limit: LimitNumbers, share: int) -> LimitNumbers:
    """The same limit with a lower ceiling: another count of a window, another burst of a bucket."""
    name, count, period, burst = limit
    if name in naive.BUCKETS:
        return name, count, period, max((burst or count) * share // 100, 1)
    return name, max(count * share // 100, 1), period, burst


def run(make_store: MakeStore, classes: list[LimitNumbers], script: list[tuple[int, Call]]) -> Store:
    """Run a schedule of (class, call) on a new store and on the model, which must agree."""
    clock = FakeClock(START / 1_000_000)
    store = make_store(clock)
    pair = Pair(store, clock, classes[0])
    for number, (operation, move, share) in script:
        pair.change(classes[number % len(classes)])
        pair.step(operation, move, share)
    store.close()
    return store


@pytest.mark.parametrize("algorithm", LIMIT_KINDS)
def test_random_classes(algorithm: str, kind: str, make_store: MakeStore) -> None:
    @settings(max_examples=examples(EXAMPLES[kind]), deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        highest = data.draw(limits(algorithm))
        shares = data.draw(st.lists(st.sampled_from(SHARES), min_size=1, max_size=3))
        classes = [highest, *[class_of(highest, share) for share in shares]]
        shapes = {naive.Limit(*numbers).shape for numbers in classes}
        assume(len(shapes) == 1)  # else the limits are so large that their ticks differ
        numbers = st.integers(0, len(classes) - 1)
        script = data.draw(calls())
        store = run(make_store, classes, [(data.draw(numbers), call) for call in script])
        if isinstance(store, SharedStore):
            Path(store.path).unlink()

    compare()
