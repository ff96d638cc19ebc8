"""The SQL stores against the kit, the vectors, and the naive model on random schedules.

All tests share one database of each kind: each store takes a prefix of its own, and so counters of its own.
"""

from __future__ import annotations

from pathlib import Path

import naive
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.schedules import calls, changing, limits, run_on
from databases import KINDS, open_at, url_of
from headgate.stores.port import Store
from headgate.testing import FakeClock, StoreConformance, differences, read_vectors

VECTORS = Path(__file__).parent.parent / "vectors" / "vectors.jsonl"
EXAMPLES = {"sqlite": 40, "mariadb": 10, "postgres": 10}
EVERY = {"sqlite": 1, "mariadb": 6, "postgres": 6}
"""A server flushes its log to the disk at each call, so it is given fewer."""


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def url(kind: str, request: pytest.FixtureRequest) -> str:
    return url_of(kind, request)


class TestSql(StoreConformance):
    @pytest.fixture(autouse=True)
    def _database(self, url: str) -> None:
        self.url = url

    def make_store(self, clock: FakeClock) -> Store:
        return open_at(self.url, clock)


def test_vectors(kind: str, url: str) -> None:
    with VECTORS.open() as lines:
        sequences = list(read_vectors(lines))[:: EVERY[kind]]
    assert [wrong for sequence in sequences for wrong in differences(sequence, lambda c: open_at(url, c))] == []


@pytest.mark.parametrize("algorithm", naive.ALGORITHMS)
def test_one_limit(algorithm: str, kind: str, url: str) -> None:
    @settings(max_examples=EXAMPLES[kind], deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        run_on(lambda clock: open_at(url, clock), data.draw(limits(algorithm)), data.draw(calls()), {})

    compare()


@pytest.mark.parametrize("algorithm", naive.ALGORITHMS)
def test_changing_limits(algorithm: str, kind: str, url: str) -> None:
    @settings(max_examples=EXAMPLES[kind], deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        run_on(lambda clock: open_at(url, clock), *changing(data, algorithm))

    compare()
