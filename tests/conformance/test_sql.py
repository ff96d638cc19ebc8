"""The SQL stores against the kit, the vectors, and the naive model on random schedules.

All tests share one database of each kind. Each store has its own prefix, and so its own counters.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.schedules import LIMIT_KINDS, calls, changing, limits, run_on
from crestgate.stores.port import Store
from crestgate.testing import (
    AsyncStoreAdapter,
    FakeClock,
    IdempotencyConformance,
    StoreConformance,
    read_vectors,
    vector_mismatches,
)
from databases import KINDS, open_at, url_of

VECTORS = Path(__file__).parent.parent / "vectors" / "vectors.jsonl"
EXAMPLES = {"sqlite": 40, "mariadb": 10, "postgres": 10}
"""A server flushes its log to the disk at each call, so it is given fewer."""

MakeStore = Callable[[FakeClock], Store]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def url(kind: str, request: pytest.FixtureRequest) -> str:
    return url_of(kind, request)


@pytest.fixture(scope="module", params=["sync", "async"])
def make_store(request: pytest.FixtureRequest, url: str) -> MakeStore:
    if request.param == "sync":
        return lambda clock: open_at(url, clock)
    return lambda clock: AsyncStoreAdapter(open_at(url, clock))


class TestSql(StoreConformance):
    @pytest.fixture(autouse=True)
    def _database(self, make_store: MakeStore) -> None:
        self.make = make_store

    def make_store(self, clock: FakeClock) -> Store:
        return self.make(clock)


class TestSqlRecords(IdempotencyConformance):
    @pytest.fixture(autouse=True)
    def _database(self, make_store: MakeStore) -> None:
        self.make = make_store

    def make_store(self, clock: FakeClock) -> Store:
        return self.make(clock)


def test_vectors(make_store: MakeStore) -> None:
    """Several at a time, so that the waits for the disk overlap."""
    with VECTORS.open() as lines, ThreadPoolExecutor(4) as pool:
        wrong = list(pool.map(lambda sequence: vector_mismatches(sequence, make_store), read_vectors(lines)))
    assert len(wrong) >= 240
    assert [difference for found in wrong for difference in found] == []


@pytest.mark.parametrize("algorithm", LIMIT_KINDS)
def test_one_limit(algorithm: str, kind: str, url: str) -> None:
    @settings(max_examples=EXAMPLES[kind], deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        run_on(lambda clock: open_at(url, clock), data.draw(limits(algorithm)), data.draw(calls()), {})

    compare()


@pytest.mark.parametrize("algorithm", LIMIT_KINDS)
def test_changing_limits(algorithm: str, kind: str, url: str) -> None:
    @settings(max_examples=EXAMPLES[kind], deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        run_on(lambda clock: open_at(url, clock), *changing(data, algorithm))

    compare()
