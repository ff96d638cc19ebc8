"""`POST /api/v1/explain` and `crestgate explain --url` on a running service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from integration.child_process import wait_until
from integration.service.api_helpers import make_key, problem
from integration.service.service_process import Service

RULES: list[dict[str, Any]] = [
    {"rule_id": "why", "dimension": "user", "endpoint_pattern": "/why/*", "limit": 2, "window_seconds": 3600},
    {
        "rule_id": "why-gold",
        "dimension": "user",
        "tier": "gold",
        "endpoint_pattern": "/why/*",
        "limit": 9,
        "window_seconds": 3600,
    },
    {"rule_id": "why-off", "dimension": "user", "endpoint_pattern": "/why/*", "limit": 1, "window_seconds": 1}
    | {"mode": "disabled"},
]
CHECK = {"context": {"user": "why-42", "path": "/why/7"}}


@pytest.fixture(scope="module", autouse=True)
def rules(admin: httpx.Client) -> Iterator[None]:
    for rule in RULES:
        assert admin.post("/api/v1/rules", json=rule).status_code == 201
    yield
    for rule in RULES:
        assert admin.delete(f"/api/v1/rules/{rule['rule_id']}").status_code == 204


def explain(admin: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    response = admin.post("/api/v1/explain", json=body)
    assert response.status_code == 200, response.text
    data: dict[str, Any] = response.json()
    return data


def statuses(data: dict[str, Any]) -> dict[str, str]:
    return {rule["rule_id"]: rule["status"] for rule in data["rules"] if rule["rule_id"].startswith("why")}


def test_explains_a_denial_without_consuming(admin: httpx.Client) -> None:
    expected = {"why": "applies", "why-gold": "not_matched", "why-off": "not_matched"}
    for used in range(2):
        data = explain(admin, CHECK)
        assert data["decision"]["allowed"] is True
        assert statuses(data) == expected
        assert data["rules"][0]["counter"]["used"] == used
        assert admin.post("/api/v1/check", json=CHECK).json()["allowed"] is True
    data = explain(admin, CHECK)
    decided = admin.post("/api/v1/check", json=CHECK).json()
    assert decided["allowed"] is data["decision"]["allowed"] is False
    assert (decided["rule"], decided["reason"]) == (data["decision"]["rule"], data["decision"]["reason"])
    assert "rule why raised to at least 3" in data["changes"]
    gold = explain(admin, {"context": {**CHECK["context"], "tier": "gold"}})
    assert statuses(gold) == {"why": "lost", "why-gold": "applies", "why-off": "not_matched"}
    assert gold["decision"]["remaining"] == 7
    assert gold["store"].startswith("shared memory in ")


@pytest.mark.parametrize(
    "body",
    [
        {"dimension": "USER", "identifier": "why-1", "endpoint": "/why/1", "method": "GET", "cost": 2},
        {"context": {"user": "why-1", "path": "/why/1"}},
        {"key": "why-key"},
    ],
)
def test_takes_the_forms_of_a_check(admin: httpx.Client, body: dict[str, Any]) -> None:
    quota = admin.post("/api/v1/quota", json=body).json()
    decision = explain(admin, body)["decision"]
    del quota["reset_at"], decision["reset_at"]
    assert decision == quota


def test_needs_the_scope_read(service: Service, anyone: httpx.Client) -> None:
    problem(anyone.post("/api/v1/explain", json=CHECK), 401, "key")
    for scope, status in (("check", 403), ("read", 200)):
        _, token = make_key(service, f"explain-{scope}", "--scope", scope)
        with service.client(token) as client:
            wait_until("the key is known", lambda client=client: client.get("/api/v1/stats").status_code != 401)
            response = client.post("/api/v1/explain", json=CHECK)
            assert response.status_code == status, response.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "nothing says what is checked"),
        ({"context": {"user": 5}}, "context.user"),
        ({"context": {"user": "1"}, "cost": -1}, "cost"),
        ({"key": "a", "plans": ["unknown"]}, "plans[0]"),
        ({"context": {"user": "1"}, "rules": []}, "rules"),
        ({"key": "a", "op": "peek"}, "op"),
    ],
)
def test_bad_bodies_are_refused(admin: httpx.Client, body: dict[str, Any], field: str) -> None:
    problem(admin.post("/api/v1/explain", json=body), 400, field)


def test_other_methods_are_refused(admin: httpx.Client) -> None:
    problem(admin.get("/api/v1/explain"), 405, "POST")


def test_command_line_asks_the_service(service: Service) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
    env |= {"PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder), "CRESTGATE_ADMIN_KEY": service.key}
    command = [sys.executable, "-m", "crestgate", "explain", "--user", "why-7", "--path", "/why/1", "--cost", "3"]
    asked = subprocess.run(
        [*command, "--url", service.url, "--json"], env=env, capture_output=True, text=True, timeout=60
    )
    assert asked.returncode == 1, asked.stderr
    local = subprocess.run(
        [*command, "--json"], cwd=service.folder, env=env, capture_output=True, text=True, timeout=60
    )
    assert local.returncode == 1, local.stderr
    there, here = json.loads(asked.stdout), json.loads(local.stdout)
    assert here["rules"] == there["rules"]
    assert here["changes"] == there["changes"]
