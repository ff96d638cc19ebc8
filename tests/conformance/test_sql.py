"""The SQL stores against the kit, the vectors, and the naive model on random schedules.

All tests share one database of each kind: each store takes a prefix of its own, and so counters of its own.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import naive
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.schedules import calls, changing, limits, run_on
from headgate.stores.options import Options
from headgate.stores.port import Store
from headgate.stores.sql import SqlStore
from headgate.stores.sql.opening import open_driver
from headgate.testing import FakeClock, StoreConformance, differences, read_vectors

VECTORS = Path(__file__).parent.parent / "vectors" / "vectors.jsonl"
NUMBERS = itertools.count()
KINDS = ["sqlite", "mariadb", "postgres"]
EXAMPLES = {"sqlite": 60, "mariadb": 25, "postgres": 25}


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/counters.db"


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def url(kind: str, request: pytest.FixtureRequest) -> str:
    server = request.getfixturevalue(kind)
    return server if isinstance(server, str) else str(server.url)


def store_at(url: str, clock: FakeClock) -> SqlStore:
    prefix = f"conformance-{next(NUMBERS)}"
    store = SqlStore(open_driver(Options(url)), prefix=prefix, timeout_ms=10_000, clock=clock)
    store.connect()
    return store


class TestSql(StoreConformance):
    @pytest.fixture(autouse=True)
    def _database(self, url: str) -> None:
        self.url = url

    def make_store(self, clock: FakeClock) -> Store:
        return store_at(self.url, clock)


def test_vectors(url: str) -> None:
    with VECTORS.open() as lines:
        sequences = list(read_vectors(lines))
    assert [wrong for sequence in sequences for wrong in differences(sequence, lambda c: store_at(url, c))] == []


@pytest.mark.parametrize("algorithm", naive.ALGORITHMS)
def test_one_limit(algorithm: str, kind: str, url: str) -> None:
    @settings(max_examples=EXAMPLES[kind], deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        run_on(lambda clock: store_at(url, clock), data.draw(limits(algorithm)), data.draw(calls()), {})

    compare()


@pytest.mark.parametrize("algorithm", naive.ALGORITHMS)
def test_changing_limits(algorithm: str, kind: str, url: str) -> None:
    @settings(max_examples=EXAMPLES[kind], deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        run_on(lambda clock: store_at(url, clock), *changing(data, algorithm))

    compare()
