"""A stored rule that cannot be read: the others take effect, and operators see it wherever they look."""

from __future__ import annotations

import sqlite3
from uuid import uuid4

import httpx
import pytest

from integration.service.service_process import Service
from servers.machine import until

BROKEN = ["{", '{"rule_id": "x", "of_a_newer_version": 1}']


@pytest.mark.parametrize("body", BROKEN, ids=["no JSON", "unknown field"])
def test_unreadable_rule(service: Service, admin: httpx.Client, anyone: httpx.Client, body: str) -> None:
    bad, good = uuid4().hex, uuid4().hex
    for name in (bad, good):
        rule = {"rule_id": name, "dimension": "user", "identifier": name, "limit": 1, "window_seconds": 3600}
        assert admin.post("/api/v1/rules", json=rule).status_code == 201
    with sqlite3.connect(service.folder / ".crestgate" / "rules.db", timeout=30) as database:
        database.execute("UPDATE crestgate_revisions SET revision = revision + 1")
        revision = "(SELECT revision FROM crestgate_revisions)"
        database.execute(
            f"UPDATE crestgate_records SET body = ?, revision = {revision} WHERE id = ?", (body, bad.encode())
        )
    until("the service has seen it", lambda: bad in anyone.get("/readyz").json()["checks"]["rules"])
    ready = anyone.get("/readyz")
    assert ready.status_code == 200, "it can decide"
    problem = ready.json()["checks"]["rules"]
    assert problem.startswith("1 of the stored records cannot be used, all others are in force: ")
    assert "crestgate_rules_unreadable 1.0" in anyone.get("/metrics").text
    listed = admin.get("/api/v1/rules", params={"limit": 1}).json()
    assert [(one["kind"], one["id"]) for one in listed["unreadable"]] == [("rule", bad)]

    changed = {"dimension": "user", "identifier": good, "limit": 7, "window_seconds": 3600}
    assert admin.put(f"/api/v1/rules/{good}", json=changed).status_code == 200
    for name, limit in ((good, 7), (bad, 1)):
        answer = anyone.post("/api/v1/quota", json={"context": {"user": name}}).json()
        assert answer["limit"] == limit, "the change takes effect, the last valid version stays"
    assert admin.delete(f"/api/v1/rules/{bad}").status_code == 204
    assert admin.delete(f"/api/v1/rules/{good}").status_code == 204
    assert "unreadable" not in admin.get("/api/v1/rules").json()
    assert service.logged.count("stored rule cannot be used, keeping its last valid version: ") >= 1
