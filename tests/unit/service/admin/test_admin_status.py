"""`/api/v1/status`: workers, stores, rules, and whether the failure policy decides."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from crestgate.service.observability.snapshot import Snapshot, WorkerStatus
from crestgate.service.observability.store_status import ProbedStore, store_entries, stores_of
from crestgate.service.observability.worker_snapshots import WorkerSnapshots
from crestgate.stores.memory import MemoryStore
from crestgate.stores.migrating.store import MigratingStore
from crestgate.stores.named import NamedStoreGroup
from crestgate.stores.spec import Migration, NamedStores
from unit.service.admin.admin_client import Control

RULE = {"rule_id": "orders", "dimension": "user", "limit": 10, "window_seconds": 60}


def status(control: Control) -> dict[str, Any]:
    answer = control.get("/api/v1/status")
    assert answer.status_code == 200
    data: dict[str, Any] = answer.json()
    return data


def test_status_of_a_healthy_service(control: Control) -> None:
    control.post("/api/v1/rules", RULE)
    control.clock.advance(5)
    data = status(control)
    assert (data["policy_decides_now"], data["policy_decisions_last_minute"], data["failure_policy"]) == (
        False,
        0,
        "open",
    )
    assert data["uptime_seconds"] == 5
    assert (data["rules"]["in_force"], data["rules"]["unreadable"]) == (1, 0)
    assert len(data["rules"]["sources"]) == 2
    (worker,) = data["workers"]
    assert (worker["worker"], worker["pid"]) == (0, os.getpid())
    default, database = data["stores"]
    assert (default["name"], default["reachable"], default["last_error"]) == ("default", True, None)
    assert (database["name"], database["reachable"], database["breaker"]) == ("rule_database", True, None)
    assert database["url"].startswith("sqlite:///")


def test_status_while_the_failure_policy_decides(control: Control) -> None:
    control.post("/api/v1/rules", RULE)
    control.store.broken = True
    for _ in range(3):
        assert control.check(user="bob", path="/").reason == "fail_open"
    data = status(control)
    assert (data["policy_decides_now"], data["policy_decisions_last_minute"]) == (True, 3)
    default = data["stores"][0]
    assert not default["reachable"]
    assert "does not answer" in default["last_error"]


@pytest.mark.parametrize("dead", ["from", "to", "hot", "cold"])
def test_each_store_has_its_own_state(tmp_path: Path, dead: str) -> None:
    urls = {name: f"redis://{name}:6379" for name in ("from", "to", "hot", "cold")}
    stores = {name: MemoryStore() for name in urls}
    spec = NamedStores(Migration(urls["from"], urls["to"], 50), {"hot": urls["hot"], "cold": urls["cold"]})
    migrating = MigratingStore(stores["from"], stores["to"], spec.default.share)  # type: ignore[union-attr]
    group = NamedStoreGroup(migrating, {"hot": stores["hot"], "cold": stores["cold"]})
    stores[dead].close()
    with closing(Control(tmp_path, spec=spec, group=group)) as control:
        *found, database = status(control)["stores"]
    assert {store["name"]: store["url"] for store in found} == urls
    assert [store["name"] for store in found if not store["reachable"]] == [dead]
    assert [store["name"] for store in found if store["last_error"]] == [dead]
    assert database["reachable"]


def test_status_of_all_workers(control: Control) -> None:
    now_us = control.clock.ticks()
    for number, age_us in ((1, 1_000_000), (2, 60_000_000)):
        other = WorkerStatus(4000 + number, now_us - age_us, policy_decisions=7, policy_decided_us=now_us - 2_000_000)
        WorkerSnapshots(control.snapshots_folder, number).publish(
            Snapshot(at_us=now_us - age_us, sequence=1, worker=other)
        )
    data = status(control)
    workers = [(worker["pid"], worker["silent"]) for worker in data["workers"]]
    assert workers == [(os.getpid(), False), (4001, False), (4002, True)], "worker 2 is stuck"
    assert data["workers_expected"] == 1, "by the settings of this test"
    assert (data["policy_decides_now"], data["policy_decisions_last_minute"]) == (True, 7)


def test_each_store_is_reachable_by_its_own_probe() -> None:
    stores = {"migrate.from": "sqlite:///a", "migrate.to": "redis://b:6379", "stores.hot": "redis://c:6379"}
    assert stores_of(NamedStores(Migration("sqlite:///a", "redis://b:6379"), {"hot": "redis://c:6379"})) == stores
    worker = WorkerStatus(1, 0, {"b:6379": ("closed", ""), "c:6379": ("open", "it refuses connections")})
    probed = {
        "migrate.from": ProbedStore("sqlite:///a", None, ()),
        "migrate.to": ProbedStore("redis://b:6379", "READONLY", ("b:6379",)),
        "stores.hot": ProbedStore("redis://c:6379", None, ("c:6379",)),
    }
    rows = [tuple(row.values()) for row in store_entries(probed, [worker])]
    assert rows == [
        ("from", "sqlite:///a", True, None, None),
        ("to", "redis://b:6379", False, "closed", "READONLY"),
        ("hot", "redis://c:6379", True, "open", "it refuses connections"),
    ]
