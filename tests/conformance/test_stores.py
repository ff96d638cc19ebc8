"""Every local store against the kit, the vectors, and the naive model on random schedules."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from crestgate.stores.factory import open_store
from crestgate.stores.memory import MemoryStore
from crestgate.stores.migrating.share import Share
from crestgate.stores.migrating.store import MigratingStore
from crestgate.stores.port import Store
from crestgate.stores.remote_store import RemoteStore
from crestgate.stores.shared import SharedStore
from crestgate.testing import (
    AsyncStoreAdapter,
    FakeClock,
    IdempotencyConformance,
    StoreConformance,
    read_vectors,
    vector_mismatches,
)

VECTORS = Path(__file__).parent.parent / "vectors" / "vectors.jsonl"
MakeStore = Callable[[FakeClock], Store]


class TestMemory(StoreConformance, IdempotencyConformance):
    def make_store(self, clock: FakeClock) -> Store:
        return MemoryStore(clock=clock)


class TestSharded(IdempotencyConformance):
    """The rest of the kit is in its unit tests."""

    def make_store(self, clock: FakeClock) -> Store:
        return open_store(["memory://"] * 3, clock)


class TestMigrating(IdempotencyConformance):
    """Half of the subjects are moved: keys and records are in both stores."""

    def make_store(self, clock: FakeClock) -> Store:
        return MigratingStore(MemoryStore(clock=clock), MemoryStore(clock=clock), Share(percent=50))


class TestShardedOnLoop(IdempotencyConformance):
    def make_store(self, clock: FakeClock) -> Store:
        store = open_store(["memory://"] * 3, clock)
        assert isinstance(store, RemoteStore)
        return AsyncStoreAdapter(store)


class TestShardedFiles(IdempotencyConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.paths = (tmp_path / f"counters-{i}" for i in itertools.count())

    def make_store(self, clock: FakeClock) -> Store:
        return open_store([f"shared://{next(self.paths)}?max_keys=200&timeout_ms=10000" for _ in range(2)], clock)


class TestShared(StoreConformance, IdempotencyConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.paths = (str(tmp_path / f"counters-{i}") for i in itertools.count())

    def make_store(self, clock: FakeClock) -> Store:
        return SharedStore(next(self.paths), max_keys=200, timeout_ms=10_000, clock=clock)


@pytest.fixture(params=["memory", "shared"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    numbers = itertools.count()

    def shared(clock: FakeClock) -> Store:
        return SharedStore(str(tmp_path / f"counters-{next(numbers)}"), max_keys=4, timeout_ms=10_000, clock=clock)

    return (lambda clock: MemoryStore(clock=clock)) if request.param == "memory" else shared


def test_vectors(make_store: MakeStore) -> None:
    with VECTORS.open() as lines:
        sequences = list(read_vectors(lines))
    assert len(sequences) >= 240
    assert [wrong for sequence in sequences for wrong in vector_mismatches(sequence, make_store)] == []


def test_wrong_vector_is_detected(make_store: MakeStore) -> None:
    with VECTORS.open() as lines:
        sequence = next(read_vectors(lines))
    expect = next(call["expect"] for call in sequence["calls"] if "expect" in call)
    expect["remaining"] += 1
    assert len(vector_mismatches(sequence, make_store)) == 1
