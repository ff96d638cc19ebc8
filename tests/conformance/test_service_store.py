"""A Crestgate service as a store, with the same kit and vectors as other stores.

Requests go over a socket to a service in this process, whose counters are in memory on the kit's virtual time. So the
numbers in the responses equal those of `memory://`, to the microsecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.service_here import ServiceHere
from crestgate.core.algorithms import BUILT_IN, CONCURRENCY
from crestgate.stores.port import Store
from crestgate.testing import AsyncStoreAdapter, FakeClock, StoreConformance, read_vectors, vector_mismatches

VECTORS = Path(__file__).parent.parent / "vectors" / "vectors.jsonl"
EVERY = 6
"""Of the vectors, one in so many: that every algorithm decides alike is not for the wire to say."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceHere]:
    service = ServiceHere(tmp_path_factory.mktemp("service"))
    yield service
    service.close()


class TestService(StoreConformance):
    algorithms = tuple(name for name in BUILT_IN if name != CONCURRENCY)
    """In-flight limits are refused: a service issues no slots to its clients."""

    @pytest.fixture(autouse=True)
    def _service(self, here: ServiceHere) -> None:
        self.here = here

    def make_store(self, clock: FakeClock) -> Store:
        return self.here.renewed(clock)


class TestServiceOnLoop(StoreConformance):
    algorithms = ("gcra",)

    @pytest.fixture(autouse=True)
    def _service(self, here: ServiceHere) -> None:
        self.here = here

    def make_store(self, clock: FakeClock) -> Store:
        return AsyncStoreAdapter(self.here.renewed(clock))


def test_vectors(here: ServiceHere) -> None:
    with VECTORS.open() as lines:
        sequences = [one for one in read_vectors(lines) if CONCURRENCY not in one["name"]][::EVERY]
    assert len(sequences) >= 40
    assert [wrong for sequence in sequences for wrong in vector_mismatches(sequence, here.renewed)] == []
