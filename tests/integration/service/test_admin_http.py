"""The admin API over HTTP: every call of rules, plans, users, audit and statistics, with its errors."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from integration.child_process import wait_until
from integration.service.api_helpers import problem

RULE_FIELDS = {
    "rule_id", "name", "dimension", "identifier", "endpoint_pattern", "method", "tier", "algorithm", "limit",
    "window_seconds", "burst", "mode", "on_store_error", "expires_at", "created_at", "updated_at", "version",
}  # fmt: skip


@pytest.fixture
def name() -> str:
    return uuid4().hex


def build_rule(base: str, **fields: Any) -> dict[str, Any]:
    return {
        "rule_id": base,
        "name": f"Rule {base}",
        "dimension": "user",
        "endpoint_pattern": f"/{base}/*",
        "limit": 5,
        "window_seconds": 3600,
        **fields,
    }


def create(admin: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    response = admin.post("/api/v1/rules", json=body)
    assert response.status_code == 201, response.text
    created: dict[str, Any] = response.json()
    return created


# -- rules ----------------------------------------------------------------------------------------------------------


def test_rule_lifecycle(admin: httpx.Client, name: str) -> None:
    response = admin.post("/api/v1/rules", json=build_rule(name))
    assert response.status_code == 201
    assert response.headers["location"] == f"/api/v1/rules/{name}"
    assert response.headers["etag"] == '"1"'
    rule = response.json()
    assert set(rule) == RULE_FIELDS
    assert (rule["algorithm"], rule["identifier"], rule["method"], rule["tier"]) == (
        "sliding_window_counter",
        "*",
        "*",
        "*",
    )
    assert (rule["mode"], rule["burst"], rule["on_store_error"], rule["expires_at"]) == ("enforce", None, None, None)
    assert rule["version"] == 1
    assert datetime.fromisoformat(rule["created_at"]).utcoffset() is not None
    read = admin.get(f"/api/v1/rules/{name}")
    assert (read.status_code, read.json(), read.headers["etag"]) == (200, rule, '"1"')
    updated = admin.put(f"/api/v1/rules/{name}", json=build_rule(name, limit=9))
    assert (updated.status_code, updated.json()["limit"], updated.json()["version"]) == (200, 9, 2)
    assert updated.json()["created_at"] == rule["created_at"]
    assert updated.json()["updated_at"] > rule["updated_at"]
    deleted = admin.delete(f"/api/v1/rules/{name}")
    assert (deleted.status_code, deleted.content) == (204, b"")
    problem(admin.get(f"/api/v1/rules/{name}"), 404, name)
    problem(admin.delete(f"/api/v1/rules/{name}"), 404, name)
    problem(admin.put(f"/api/v1/rules/{name}", json=build_rule(name)), 404, name)


def test_rule_applies_immediately(admin: httpx.Client, name: str) -> None:
    body = {"dimension": "user", "identifier": name, "endpoint": f"/{name}/x"}
    for limit in (1, 4, 2):
        if limit == 1:
            create(admin, build_rule(name, limit=limit))
        else:
            assert admin.put(f"/api/v1/rules/{name}", json=build_rule(name, limit=limit)).status_code == 200
        assert admin.post("/api/v1/quota", json=body).json()["limit"] == limit
    admin.delete(f"/api/v1/rules/{name}")
    assert admin.post("/api/v1/quota", json=body).json()["reason"] == "no_rule"


def test_changed_rule_keeps_usage(admin: httpx.Client, name: str) -> None:
    create(admin, build_rule(name, limit=5, algorithm="fixed_window", window_seconds=86400))
    body = {"dimension": "user", "identifier": name, "endpoint": f"/{name}/x"}
    admin.post("/api/v1/check", json={**body, "cost": 3})
    admin.put(f"/api/v1/rules/{name}", json=build_rule(name, limit=50, algorithm="fixed_window", window_seconds=86400))
    assert admin.post("/api/v1/quota", json=body).json()["remaining"] == 47


def test_rule_without_an_id_gets_one(admin: httpx.Client, name: str) -> None:
    body = build_rule(name, name=f"Orders {name}!")
    del body["rule_id"]
    created = create(admin, body)
    assert name in created["rule_id"]
    assert admin.get(f"/api/v1/rules/{quote(created['rule_id'], safe='')}").status_code == 200


@pytest.mark.parametrize(
    ("given", "stored"), [("API_KEY", "apikey"), ("User", "user"), ("GLOBAL", "global"), ("KEY", "key"), ("Ip", "ip")]
)
def test_aliases_of_dimensions_and_algorithms(admin: httpx.Client, name: str, given: str, stored: str) -> None:
    created = create(admin, build_rule(name, dimension=given, algorithm="sliding_window"))
    assert (created["dimension"], created["algorithm"]) == (stored, "sliding_window_counter")


def test_rules_of_the_same_slot_conflict(admin: httpx.Client, name: str) -> None:
    create(admin, build_rule(name))
    problem(admin.post("/api/v1/rules", json=build_rule(name)), 409, name)
    problem(admin.post("/api/v1/rules", json=build_rule(name, rule_id=f"{name}-2", limit=6)), 409, name)
    create(admin, build_rule(name, rule_id=f"{name}-gold", tier="gold"))
    create(admin, build_rule(name, rule_id=f"{name}-one", identifier="one"))
    create(admin, build_rule(name, rule_id=f"{name}-day", window_seconds=86400))
    create(admin, build_rule(name, rule_id=f"{name}-shadow", mode="shadow"))


def test_if_match_detects_stale_versions(admin: httpx.Client, name: str) -> None:
    create(admin, build_rule(name))
    path = f"/api/v1/rules/{name}"
    assert admin.put(path, json=build_rule(name, limit=6), headers={"if-match": '"1"'}).status_code == 200
    for stale in ('"1"', "1", '"7"', "nonsense"):
        problem(admin.put(path, json=build_rule(name, limit=7), headers={"if-match": stale}), 412)
        problem(admin.delete(path, headers={"if-match": stale}), 412)
    assert admin.get(path).json()["limit"] == 6
    assert admin.put(path, json=build_rule(name, limit=8), headers={"if-match": "*"}).status_code == 200
    assert admin.delete(path, headers={"if-match": 'W/"3"'}).status_code == 204


def test_all_errors_are_reported_together(admin: httpx.Client, name: str) -> None:
    body = build_rule(name, limit=-1, window_seconds=0, mode="maybe", nonsense=1)
    error = problem(admin.post("/api/v1/rules", json=body), 400)
    assert {entry["field"] for entry in error["problems"]} >= {"limit", "window_seconds", "mode", "nonsense"}
    problem(admin.get(f"/api/v1/rules/{name}"), 404)


def test_rule_list_is_paged(admin: httpx.Client, name: str) -> None:
    ids = [f"{name}-{number}" for number in range(7)]
    for rule_id in ids:
        create(admin, build_rule(rule_id, tier=name))
    listed: list[str] = []
    after: str | None = ""
    while after is not None:
        page = admin.get("/api/v1/rules", params={"limit": 3, "after": after, "tier": name}).json()
        assert set(page) == {"rules", "next"}
        assert len(page["rules"]) <= 3
        listed += [rule["rule_id"] for rule in page["rules"]]
        after = page["next"]
    assert listed == ids
    one = admin.get("/api/v1/rules", params={"dimension": "USER", "tier": name, "mode": "enforce", "identifier": "*"})
    assert len(one.json()["rules"]) == 7


# -- plans ----------------------------------------------------------------------------------------------------------


def test_plan_lifecycle(admin: httpx.Client, name: str) -> None:
    response = admin.post("/api/v1/plans", json={"name": name, "limits": ["10/second burst 20", "5000 per day"]})
    assert response.status_code == 201
    assert response.headers["location"] == f"/api/v1/plans/{name}"
    assert response.json() == {"name": name, "limits": ["10/second burst 20", "5000/day"]}
    assert admin.get(f"/api/v1/plans/{name}").json() == response.json()
    problem(admin.post("/api/v1/plans", json={"name": name, "limits": "1/day"}), 409, name)
    assert admin.put(f"/api/v1/plans/{name}", json={"limits": "1/day"}).json()["limits"] == ["1/day"]
    assert name in [plan["name"] for plan in admin.get("/api/v1/plans", params={"limit": 1000}).json()["plans"]]
    assert admin.get("/api/v1/plans", params={"limit": 1}).json()["plans"] != []
    assert admin.post("/api/v1/check", json={"key": name, "plans": [name]}).json()["limit"] == 1
    assert admin.delete(f"/api/v1/plans/{name}").status_code == 204
    problem(admin.post("/api/v1/check", json={"key": name, "plans": [name]}), 400, name)
    problem(admin.get(f"/api/v1/plans/{name}"), 404)
    problem(admin.put(f"/api/v1/plans/{name}", json={"limits": "1/day"}), 404)
    problem(admin.delete(f"/api/v1/plans/{name}"), 404)


# -- users ----------------------------------------------------------------------------------------------------------


def test_limits_of_a_user(admin: httpx.Client, name: str) -> None:
    user = f"user/{name}"
    path = f"/api/v1/users/{quote(user, safe='')}"
    create(admin, build_rule(name, limit=5))
    create(admin, build_rule(name, rule_id=f"{name}-gold", tier="gold", limit=50))
    admin.post("/api/v1/check", json={"dimension": "user", "identifier": user, "endpoint": f"/{name}/1", "cost": 2})

    def limits() -> list[dict[str, Any]]:
        response_body = admin.get(f"{path}/limits").json()
        assert set(response_body) == {"user_id", "tier", "limits", "next"}
        assert response_body["user_id"] == user
        return [limit for limit in response_body["limits"] if limit["endpoint_pattern"] == f"/{name}/*"]

    (limit,) = limits()
    assert (limit["rule"], limit["limit"], limit["remaining"], limit["current_count"]) == (name, 5, 3, 2)
    assert {"reset_after", "state", "algorithm", "window_seconds", "method", "tier"} <= set(limit)
    assert admin.get(f"{path}/limits").json()["tier"] == "free"

    assert admin.put(f"{path}/tier", json={"tier": "gold"}).json() == {"user_id": user, "tier": "gold"}
    (limit,) = limits()
    assert (limit["rule"], limit["limit"], limit["remaining"]) == (f"{name}-gold", 50, 48)

    created = admin.post(f"{path}/override", json={"rule_id": name, "limit": 7, "duration_seconds": 600})
    assert created.status_code == 201, created.text
    override = created.json()
    assert (override["identifier"], override["limit"]) == (user, 7)
    assert 0 < datetime.fromisoformat(override["expires_at"]).timestamp() - time.time() <= 600
    assert created.headers["location"].startswith("/api/v1/rules/")
    (limit,) = limits()
    assert (limit["limit"], limit["remaining"], limit["expires_at"]) == (7, 5, override["expires_at"])

    slot = {"endpoint_pattern": f"/{name}/*", "window_seconds": 3600, "limit": 9, "duration_seconds": 600}
    assert admin.post(f"{path}/override", json=slot).status_code == 201
    (limit,) = limits()
    assert limit["limit"] == 9
    assert admin.delete(created.headers["location"]).status_code == 204
    assert admin.put(f"{path}/tier", json={"tier": None}).json()["tier"] == "free"


def test_invalid_overrides_are_refused(admin: httpx.Client, name: str) -> None:
    path = f"/api/v1/users/{name}/override"
    problem(admin.post(path, json={"rule_id": name, "limit": 7, "duration_seconds": 600}), 404, name)
    problem(admin.post(path, json={"limit": 7, "duration_seconds": 600}), 400, "rule_id")
    problem(admin.post(path, json={"endpoint_pattern": "/a", "limit": 7, "duration_seconds": 6}), 400, "window_seconds")
    create(admin, build_rule(name, dimension="ip"))
    problem(admin.post(path, json={"rule_id": name, "limit": 7, "duration_seconds": 600}), 400)


def test_override_expires(admin: httpx.Client, name: str) -> None:
    create(admin, build_rule(name, limit=5))
    body = {"dimension": "user", "identifier": name, "endpoint": f"/{name}/1"}
    created = admin.post(f"/api/v1/users/{name}/override", json={"rule_id": name, "limit": 50, "duration_seconds": 0.5})
    assert created.status_code == 201
    wait_until("it has ended", lambda: admin.post("/api/v1/quota", json=body).json()["limit"] == 5)


# -- audit and statistics -------------------------------------------------------------------------------------------


def test_every_write_is_in_the_audit_log(admin: httpx.Client, name: str) -> None:
    started = time.time() - 1
    create(admin, build_rule(name))
    admin.put(f"/api/v1/rules/{name}", json=build_rule(name, limit=6))
    admin.delete(f"/api/v1/rules/{name}")
    admin.post("/api/v1/rules", json=build_rule(name, limit=-1))  # changes nothing, and is not logged
    page = admin.get("/api/v1/audit", params={"subject": f"rule:{name}"}).json()
    assert set(page) == {"entries", "next"}
    entries = page["entries"]
    assert [entry["action"] for entry in entries] == ["delete", "update", "create"]
    deleted, updated, created = entries
    assert set(created) == {"id", "at", "actor", "address", "action", "subject", "before", "after"}
    assert {entry["actor"] for entry in entries} == {"key:first"}
    assert {entry["address"] for entry in entries} == {"127.0.0.1"}
    assert created["before"] is None
    assert (updated["before"]["limit"], updated["after"]["limit"]) == (5, 6)
    assert deleted["after"] is None
    assert started < datetime.fromisoformat(created["at"]).timestamp() < time.time() + 1

    def audit_ids(**query: Any) -> list[str]:
        params = {"subject": f"rule:{name}", **query}
        return [entry["id"] for entry in admin.get("/api/v1/audit", params=params).json()["entries"]]

    assert audit_ids(actor="key:first") == [entry["id"] for entry in entries]
    assert audit_ids(actor="key:nobody") == []
    assert audit_ids(until=started) == []
    assert audit_ids(since=started) == [entry["id"] for entry in entries]
    assert audit_ids(since=created["at"], until=updated["at"]) == [created["id"]]
    first = admin.get("/api/v1/audit", params={"subject": f"rule:{name}", "limit": 2}).json()
    assert [entry["id"] for entry in first["entries"]] == [deleted["id"], updated["id"]]
    assert audit_ids(before=first["next"]) == [created["id"]]


def test_decisions_are_in_the_statistics(admin: httpx.Client, name: str) -> None:
    create(admin, build_rule(name, limit=2))
    body = {"dimension": "user", "identifier": name, "endpoint": f"/{name}/x"}
    for _ in range(3):
        admin.post("/api/v1/check", json=body)

    def read_stats() -> dict[str, Any]:
        stats: dict[str, Any] = admin.get("/api/v1/stats", params={"rule": name, "top": 100}).json()
        return stats

    wait_until("they are there", lambda: read_stats()["totals"]["allowed"] == 2)
    stats = read_stats()
    assert set(stats) == {"since", "until", "step", "rule", "totals", "series", "rules", "top", "top_denied"}
    assert stats["totals"] == {"allowed": 2, "denied": 1, "shadowed": 0}
    assert stats["rules"] == [{"rule": name, "allowed": 2, "denied": 1, "shadowed": 0}]
    assert sum(point["allowed"] for point in stats["series"]) == 2
    assert {"subject": f"user:{name}", "allowed": 2, "denied": 1} in stats["top"]
    hours = admin.get("/api/v1/stats", params={"rule": name, "step": "hour"}).json()
    assert hours["totals"] == stats["totals"]
