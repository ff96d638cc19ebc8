"""Liveness and readiness."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from crestgate import AsyncLimiter, __version__
from crestgate.errors import StoreError
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Actor, Edit, Repository
from crestgate.rules.storage.factory import open_repository
from crestgate.rules.storage.files import FileRepository
from crestgate.service.observability import health
from crestgate.service.observability.health import Health, ReadinessResult, required_probes
from crestgate.stores.memory import MemoryStore
from crestgate.stores.migrating.share import Share
from crestgate.stores.migrating.store import MigratingStore
from crestgate.stores.named import NamedStoreGroup
from flaky_store import Flaky


class Database:
    """A rule database that can be unreachable, or hang."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.unreachable = False
        self.proceed = threading.Event()
        self.proceed.set()
        self.calls = 0

    def get(self, kind: Any, record_id: str) -> object:
        self.calls += 1
        self.proceed.wait(20)
        if self.unreachable:
            raise StoreError("SQLite at nowhere does not answer")
        return self.repository.get(kind, record_id)


class HealthHarness:
    def __init__(self, folder: Path) -> None:
        self.rules = folder / "crestgate.yaml"
        self.rules.write_text("rules: []\n")
        self.store = Flaky()
        self.catalog = Catalog([FileRepository(str(self.rules))])
        self.repository = open_repository(f"sqlite:///{folder}/rules.db")
        self.database = Database(self.repository)

    def health(self, policy: Any = "open", ready_without_store: bool | None = False) -> Health:
        limiter = AsyncLimiter(self.store, on_store_error=policy, catalog=self.catalog)
        required = required_probes(policy, ready_without_store)
        return Health(limiter, self.database, required)  # type: ignore[arg-type]  # only get() is used


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[HealthHarness]:
    made = HealthHarness(tmp_path)
    yield made
    made.database.proceed.set()
    made.catalog.close()
    made.repository.close()


def ready(health: Health) -> ReadinessResult:
    return asyncio.run(health.readiness())


def test_alive(harness: HealthHarness) -> None:
    harness.store.broken = True
    assert harness.health().alive() == {"status": "alive", "version": __version__}


def test_ready(harness: HealthHarness) -> None:
    found = ready(harness.health())
    assert found.ready
    assert found.checks == {"counters": "ok", "rule_database": "ok", "rules": "ok"}
    assert not found.problem()


def test_unreadable_rule_is_reported_and_ready(harness: HealthHarness) -> None:
    harness.repository.write([Edit("rule", "bad", {"limit": -1})], Actor("alice"))
    with closing(Catalog([harness.repository])) as catalog:
        found = ready(Health(AsyncLimiter(harness.store, catalog=catalog), harness.repository))
        assert found.ready
        expected = "1 of the stored records cannot be used, all others are in force: rule 'bad': "
        assert found.checks["rules"].startswith(expected)


@pytest.mark.parametrize("policy", ["open", "closed", "local"])
def test_unreachable_store_is_not_ready_where_it_is_required(harness: HealthHarness, policy: str) -> None:
    health = harness.health(policy)
    harness.store.broken = True
    found = ready(health)
    assert not found.ready
    assert found.problem() == "counters: the store at nowhere does not answer"
    assert found.checks["counters"] == "the store at nowhere does not answer"
    assert found.checks["rule_database"] == "ok"


def test_unreachable_rule_database(harness: HealthHarness) -> None:
    harness.database.unreachable = True
    found = ready(harness.health())
    assert not found.ready
    assert found.checks["rule_database"] == "SQLite at nowhere does not answer"


@pytest.mark.parametrize(
    ("policy", "ready_without_store", "without_store", "without_database"),
    [
        ("open", None, True, True),
        ("local", None, True, True),
        ("closed", None, False, True),
        ("closed", True, True, True),
        ("open", False, False, False),
    ],
)
def test_readiness_without_a_store_depends_on_the_setting_and_the_policy(
    harness: HealthHarness,
    policy: str,
    ready_without_store: bool | None,
    without_store: bool,
    without_database: bool,
) -> None:
    harness.store.broken = True
    found = ready(harness.health(policy, ready_without_store))
    assert found.ready is without_store
    assert found.unreachable == ("counters",)
    assert found.checks["counters"] == "the store at nowhere does not answer", "reported in any case"
    harness.store.broken, harness.database.unreachable = False, True
    found = ready(harness.health(policy, ready_without_store))
    assert found.ready is without_database
    assert found.unreachable == ("rule_database",)


def test_each_named_store_is_probed(harness: HealthHarness) -> None:
    stores = {name: MemoryStore() for name in ("default", "hot", "cold")}
    group = NamedStoreGroup(stores["default"], {"hot": stores["hot"], "cold": stores["cold"]})
    health = Health(AsyncLimiter(group, catalog=harness.catalog), harness.repository)
    names = ["counters", "stores.hot", "stores.cold", "rule_database", "rules"]
    assert ready(health).checks == dict.fromkeys(names, "ok")
    stores["cold"].close()
    health = Health(AsyncLimiter(group, catalog=harness.catalog), harness.repository)
    found = ready(health)
    assert not found.ready
    assert found.unreachable == ("stores.cold",)


@pytest.mark.parametrize("percent", [0, 50, 100])
@pytest.mark.parametrize("closed", ["from", "to"])
def test_both_stores_of_a_migration_are_probed(harness: HealthHarness, percent: int, closed: str) -> None:
    stores = {"from": MemoryStore(), "to": MemoryStore()}
    migrating = MigratingStore(stores["from"], stores["to"], Share(percent))
    group = NamedStoreGroup(migrating, {"hot": MemoryStore()})
    stores[closed].close()
    found = ready(Health(AsyncLimiter(group, catalog=harness.catalog), harness.repository))
    assert list(found.checks) == ["migrate.from", "migrate.to", "stores.hot", "rule_database", "rules"]
    assert found.unreachable == (f"migrate.{closed}",)


def test_hanging_rule_database_is_probed_by_one_thread(harness: HealthHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(health, "CACHE_SECONDS", 0.0)
    harness.database.proceed.clear()
    probe = harness.health()

    async def main() -> None:
        for _ in range(3):
            found = await probe.readiness()
            assert found.checks["rule_database"] == "the rule database has not answered for 0.05 s"
            assert not found.ready
        assert harness.database.calls == 1
        harness.database.proceed.set()
        monkeypatch.setattr(health, "TIMEOUT_SECONDS", 10.0)
        assert (await probe.readiness()).ready

    asyncio.run(main())


def test_invalid_rules_are_reported_and_stay_ready(harness: HealthHarness) -> None:
    harness.rules.write_text("rules: [{nonsense: 1}]\n")
    harness.catalog.reload()
    harness.catalog.refresh()
    found = ready(harness.health())
    assert found.ready
    assert found.checks["rules"].startswith("reload failed, keeping the previous rules: ")
    assert "nonsense" in found.checks["rules"]


def test_unhandled_probe_error_is_reported_by_type(harness: HealthHarness) -> None:
    class Broken(Flaky):
        def apply(self, batch: Any) -> Any:
            raise RuntimeError("redis://user:secret@cache")

    found = ready(Health(AsyncLimiter(Broken(), catalog=harness.catalog), harness.repository))
    assert found.checks["counters"] == "the store failed: RuntimeError"


def test_concurrent_probes_share_one_result(harness: HealthHarness) -> None:
    probe = harness.health()

    async def main() -> None:
        answers = await asyncio.gather(*[probe.readiness() for _ in range(50)])
        assert all(found.ready for found in answers)
        assert harness.database.calls == 1
        assert (await probe.readiness()).ready
        assert harness.database.calls == 1, "the result is cached"

    asyncio.run(main())


def test_readiness_is_probed_again_after_the_cache_expires(
    harness: HealthHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CACHE_SECONDS", 0.0)
    probe = harness.health()

    async def main() -> None:
        assert (await probe.readiness()).ready
        harness.store.broken = True
        assert not (await probe.readiness()).ready
        harness.store.broken = False
        assert (await probe.readiness()).ready

    asyncio.run(main())


def test_cancelled_probe_does_not_cancel_the_others(harness: HealthHarness) -> None:
    """A probe that times out cancels its request; others that wait for the same result get it."""
    probe = harness.health()
    harness.database.proceed.clear()

    async def main() -> None:
        first = asyncio.create_task(probe.readiness())
        second = asyncio.create_task(probe.readiness())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        harness.database.proceed.set()
        assert (await second).ready

    asyncio.run(main())


def test_stopping_worker_is_not_ready(harness: HealthHarness) -> None:
    probe = harness.health()
    assert ready(probe).ready
    probe.stopping = True
    assert ready(probe).checks == {"service": "is stopping"}
    assert not ready(probe).ready
