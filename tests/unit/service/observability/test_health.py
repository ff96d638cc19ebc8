"""Liveness, and ready."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crestgate import AsyncLimiter, __version__
from crestgate.errors import StoreError
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Repository
from crestgate.rules.storage.factory import open_repository
from crestgate.rules.storage.files import FileRepository
from crestgate.service.observability import health
from crestgate.service.observability.health import Health, Readiness
from flaky_store import Flaky


class Database:
    """A rule database that can be away, or hang."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.away = False
        self.go = threading.Event()
        self.go.set()
        self.asked = 0

    def get(self, kind: Any, record_id: str) -> object:
        self.asked += 1
        self.go.wait(20)
        if self.away:
            raise StoreError("SQLite at nowhere does not answer")
        return self.repository.get(kind, record_id)


class Place:
    def __init__(self, folder: Path) -> None:
        self.rules = folder / "crestgate.yaml"
        self.rules.write_text("rules: []\n")
        self.store = Flaky()
        self.catalog = Catalog([FileRepository(str(self.rules))])
        self.repository = open_repository(f"sqlite:///{folder}/rules.db")
        self.database = Database(self.repository)

    def health(self, policy: Any = "open") -> Health:
        limiter = AsyncLimiter(self.store, on_store_error=policy, catalog=self.catalog)
        return Health(limiter, self.database)  # type: ignore[arg-type]  # all that is asked of it


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.database.go.set()
    made.catalog.close()
    made.repository.close()


def ready(health: Health) -> Readiness:
    return asyncio.run(health.readiness())


def test_alive(place: Place) -> None:
    place.store.broken = True
    assert place.health().alive() == {"status": "alive", "version": __version__}


def test_ready(place: Place) -> None:
    found = ready(place.health())
    assert found.ready
    assert found.checks == {"counters": "ok", "rule_database": "ok", "rules": "ok"}
    assert not found.problem()


@pytest.mark.parametrize("policy", ["open", "closed", "local"])
def test_unreachable_store_is_not_ready_despite_fail_open(place: Place, policy: str) -> None:
    health = place.health(policy)
    place.store.broken = True
    found = ready(health)
    assert not found.ready
    assert found.problem() == "counters: the store at nowhere does not answer"
    assert found.checks["counters"] == "the store at nowhere does not answer"
    assert found.checks["rule_database"] == "ok"


def test_unreachable_rule_database(place: Place) -> None:
    place.database.away = True
    found = ready(place.health())
    assert not found.ready
    assert found.checks["rule_database"] == "SQLite at nowhere does not answer"


def test_hanging_rule_database_is_probed_by_one_thread(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(health, "CACHE_SECONDS", 0.0)
    place.database.go.clear()
    probe = place.health()

    async def main() -> None:
        for _ in range(3):
            found = await probe.readiness()
            assert found.checks["rule_database"] == "the rule database has not answered for 0.05 s"
            assert not found.ready
        assert place.database.asked == 1
        place.database.go.set()
        monkeypatch.setattr(health, "TIMEOUT_SECONDS", 10.0)
        assert (await probe.readiness()).ready

    asyncio.run(main())


def test_invalid_rules_are_reported_and_stay_ready(place: Place) -> None:
    place.rules.write_text("rules: [{nonsense: 1}]\n")
    place.catalog.reload()
    place.catalog.refresh()
    found = ready(place.health())
    assert found.ready
    assert found.checks["rules"].startswith("reload failed, keeping the previous rules: ")
    assert "nonsense" in found.checks["rules"]


def test_unhandled_probe_error_is_reported_by_type(place: Place) -> None:
    class Broken(Flaky):
        def apply(self, batch: Any) -> Any:
            raise RuntimeError("redis://user:secret@cache")

    found = ready(Health(AsyncLimiter(Broken(), catalog=place.catalog), place.repository))
    assert found.checks["counters"] == "the store failed: RuntimeError"


def test_concurrent_probes_share_one_result(place: Place) -> None:
    probe = place.health()

    async def main() -> None:
        answers = await asyncio.gather(*[probe.readiness() for _ in range(50)])
        assert all(found.ready for found in answers)
        assert place.database.asked == 1
        assert (await probe.readiness()).ready
        assert place.database.asked == 1, "it holds for a moment"

    asyncio.run(main())


def test_readiness_is_probed_again_after_the_cache_expires(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CACHE_SECONDS", 0.0)
    probe = place.health()

    async def main() -> None:
        assert (await probe.readiness()).ready
        place.store.broken = True
        assert not (await probe.readiness()).ready
        place.store.broken = False
        assert (await probe.readiness()).ready

    asyncio.run(main())


def test_cancelled_probe_does_not_cancel_the_others(place: Place) -> None:
    """A probe that times out cancels its request; others who wait for the same answer get it."""
    probe = place.health()
    place.database.go.clear()

    async def main() -> None:
        first = asyncio.create_task(probe.readiness())
        second = asyncio.create_task(probe.readiness())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        place.database.go.set()
        assert (await second).ready

    asyncio.run(main())


def test_stopping_worker_is_not_ready(place: Place) -> None:
    probe = place.health()
    assert ready(probe).ready
    probe.stopping = True
    assert ready(probe).checks == {"service": "is stopping"}
    assert not ready(probe).ready
