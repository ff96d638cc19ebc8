"""Random schedules: the local stores against the naive model, decision for decision."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.schedules import LIMIT_KINDS, Call, LimitNumbers, calls, changing, limits, run_on
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Store
from crestgate.stores.shared import SharedStore
from crestgate.testing import FakeClock
from example_counts import examples

FOLDER = tempfile.TemporaryDirectory()
NUMBERS = itertools.count()


def memory(clock: FakeClock) -> Store:
    return MemoryStore(clock=clock)


def shared(clock: FakeClock) -> Store:
    path = Path(FOLDER.name) / f"counters-{next(NUMBERS)}"
    return SharedStore(str(path), max_keys=2, timeout_ms=10_000, clock=clock)


def run(limit: LimitNumbers, script: list[Call], changes: dict[int, LimitNumbers]) -> None:
    run_on(memory, limit, script, changes)
    store = run_on(shared, limit, script, changes)
    assert isinstance(store, SharedStore)
    Path(store.path).unlink()


@pytest.mark.parametrize("algorithm", LIMIT_KINDS)
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_one_limit(algorithm: str, data: st.DataObject) -> None:
    run(data.draw(limits(algorithm)), data.draw(calls()), {})


@pytest.mark.parametrize("algorithm", LIMIT_KINDS)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_changing_limits(algorithm: str, data: st.DataObject) -> None:
    run(*changing(data, algorithm))
