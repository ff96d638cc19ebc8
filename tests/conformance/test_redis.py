"""Redis, a Cluster and a master under Sentinel against the kit, the vectors, and the naive model, sync and async.

All tests share one server of each kind. Each store has its own prefix, and so its own counters. The time is virtual,
and is sent to the script with every batch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.schedules import LIMIT_KINDS, calls, changing, limits, run_on
from crestgate.stores.factory import open_store
from crestgate.stores.port import Store
from crestgate.stores.remote_store import RemoteStore
from crestgate.testing import (
    AsyncStoreAdapter,
    FakeClock,
    IdempotencyConformance,
    StoreConformance,
    read_vectors,
    vector_mismatches,
)

VECTORS = Path(__file__).parent.parent / "vectors" / "vectors.jsonl"
EXAMPLES = 20
SERVERS = {"one": "redis_server", "cluster": "redis_cluster", "sentinel": "redis_sentinels"}

on_random_schedules = pytest.mark.parametrize("url", ["one", "cluster"], indirect=True, scope="module")
"""What Sentinel adds is only where the server is, which the kit and the vectors show as well."""

MakeStore = Callable[[FakeClock], Store]


@pytest.fixture(scope="module", params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(SERVERS[request.param]).url)


@pytest.fixture(scope="module", params=["sync", "async"])
def make_store(request: pytest.FixtureRequest, url: str) -> MakeStore:
    def make(clock: FakeClock) -> Store:
        store = open_store(f"{url}?prefix={uuid4()}&timeout_ms=10000", clock)
        assert isinstance(store, RemoteStore)
        return store if request.param == "sync" else AsyncStoreAdapter(store)

    return make


class TestRedis(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, make_store: MakeStore) -> None:
        self.make = make_store

    def make_store(self, clock: FakeClock) -> Store:
        return self.make(clock)


class TestRecords(IdempotencyConformance):
    @pytest.fixture(autouse=True)
    def _server(self, make_store: MakeStore) -> None:
        self.make = make_store

    def make_store(self, clock: FakeClock) -> Store:
        return self.make(clock)


def test_vectors(make_store: MakeStore) -> None:
    with VECTORS.open() as lines:
        sequences = list(read_vectors(lines))
    assert [wrong for sequence in sequences for wrong in vector_mismatches(sequence, make_store)] == []


@on_random_schedules
@pytest.mark.parametrize("algorithm", LIMIT_KINDS)
def test_one_limit(algorithm: str, make_store: MakeStore) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        run_on(make_store, data.draw(limits(algorithm)), data.draw(calls()), {})

    compare()


@on_random_schedules
@pytest.mark.parametrize("algorithm", LIMIT_KINDS)
def test_changing_limits(algorithm: str, make_store: MakeStore) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        run_on(make_store, *changing(data, algorithm))

    compare()
