"""The compatibility endpoints `/admin` and `/ratelimiter` over HTTP: names and shapes of other programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from integration.child_process import wait_until
from integration.service.api_helpers import problem


@pytest.fixture
def name() -> str:
    return uuid4().hex


# -- /admin ---------------------------------------------------------------------------------------------------------


def test_status(admin: httpx.Client) -> None:
    status = admin.get("/admin/status").json()
    assert {"status", "version", "uptimeSeconds", "stores"} <= set(status)
    assert status["status"] == "OK"
    assert isinstance(status["uptimeSeconds"], int)
    assert len(status["stores"]) >= 1


@pytest.mark.parametrize("shape", ["{}", "user:{}", "user:{}|route:/v1/pay", "a/{}/b", "{} ü?#%"])
def test_policy_lifecycle(admin: httpx.Client, name: str, shape: str) -> None:
    key = shape.format(name)
    path = f"/admin/policies/{quote(key, safe='')}"
    problem(admin.get(path), 404)
    body = {"key": key, "type": "TOKEN_BUCKET", "capacity": 20, "refillRate": 2, "windowSeconds": 30}
    created = admin.post("/admin/policies", json=body)
    assert created.status_code == 201, created.text
    policy = created.json()
    assert policy == {
        "id": policy["id"],
        "policyKey": key,
        "type": "TOKEN_BUCKET",
        "capacity": 20,
        "refillRate": 2,
        "windowSeconds": 30,
    }
    assert isinstance(policy["id"], int)
    assert created.headers["location"] == path
    assert admin.get(path).json() == policy
    assert policy in admin.get("/admin/policies", params={"limit": 1000}).json()
    problem(admin.post("/admin/policies", json=body), 409)
    written = admin.put(path, json={"type": "SLIDING_WINDOW", "capacity": 3, "windowSeconds": 3600})
    assert written.status_code == 200
    assert (written.json()["id"], written.json()["type"], written.json()["capacity"]) == (
        policy["id"],
        "SLIDING_WINDOW",
        3,
    )
    assert admin.post("/api/v1/check", json={"key": key}).json()["limit"] == 3
    assert admin.delete(path).status_code == 204
    problem(admin.delete(path), 404)
    problem(admin.put(path, json={"capacity": 3}), 404)
    assert admin.post("/api/v1/quota", json={"key": key}).json()["limit"] == 100


def test_policy_defaults(admin: httpx.Client, name: str) -> None:
    policy = admin.post("/admin/policies", json={"key": name}).json()
    assert (policy["type"], policy["capacity"], policy["refillRate"], policy["windowSeconds"]) == (
        "TOKEN_BUCKET",
        100,
        10,
        60,
    )


def test_key_metrics(admin: httpx.Client, name: str) -> None:
    admin.post("/admin/policies", json={"key": name, "type": "SLIDING_WINDOW", "capacity": 5, "windowSeconds": 3600})
    path = f"/admin/metrics/{name}"
    states = []
    for _ in range(6):
        metrics = admin.get(path).json()
        assert set(metrics) == {
            "key",
            "algorithm",
            "currentTokens",
            "capacity",
            "windowRequestCount",
            "windowSeconds",
            "status",
        }
        assert (metrics["key"], metrics["algorithm"], metrics["capacity"]) == (name, "SLIDING_WINDOW", 5)
        assert metrics["windowRequestCount"] == 5 - metrics["currentTokens"]
        assert metrics["windowSeconds"] == 3600
        states.append((metrics["currentTokens"], metrics["status"]))
        admin.post("/api/v1/check", json={"key": name})
    assert states == [(5, "OK"), (4, "OK"), (3, "OK"), (2, "OK"), (1, "OK"), (0, "THROTTLED")]
    assert admin.post(f"/admin/reset/{name}").status_code == 200
    assert admin.get(path).json()["currentTokens"] == 5
    for requests, actions in ((False, ["reset"]), (True, ["reset", "reset requested"])):
        wanted: dict[str, str | bool] = {"subject": f"key:{name}", "requests": requests}
        entries = admin.get("/api/v1/audit", params=wanted).json()["entries"]
        assert [entry["action"] for entry in entries] == actions


def test_seen_keys_are_listed_with_configured_keys(admin: httpx.Client, name: str) -> None:
    admin.post("/admin/policies", json={"key": f"{name} a"})
    admin.post("/api/v1/check", json={"key": f"{name} b"})
    admin.post("/api/v1/check", json={"dimension": "KEY", "identifier": f"{name} c"})

    def keys(limit: int) -> list[str]:
        found: list[str] = []
        url: str | None = f"/admin/metrics?limit={limit}"
        while url is not None:
            response = admin.get(url)
            assert response.status_code == 200
            assert len(response.json()) <= limit
            found += [entry["key"] for entry in response.json()]
            url = response.links["next"]["url"] if "next" in response.links else None
        return [key for key in found if key.startswith(name)]

    wait_until("they are known", lambda: keys(1000) == [f"{name} a", f"{name} b", f"{name} c"])
    assert keys(7) == [f"{name} a", f"{name} b", f"{name} c"]


# -- /ratelimiter ---------------------------------------------------------------------------------------------------


def limit_of(kind: str, limit_name: str, unit: str, max_requests: int) -> dict[str, Any]:
    return {
        "limitType": kind,
        "limitName": limit_name,
        "timeIntervalLimit": {"timeUnit": unit, "maxRequests": max_requests},
    }


@pytest.fixture
def client_id(admin: httpx.Client, name: str) -> Iterator[str]:
    yield name
    admin.delete("/ratelimiter/delete-client", params={"clientId": name})


def configured(admin: httpx.Client, client_id: str) -> list[dict[str, Any]]:
    clients = admin.get("/ratelimiter/configured-limits", params={"limit": 1000}).json()
    found = [client for client in clients if client["clientId"] == client_id]
    if not found:
        return []
    assert set(found[0]) == {"clientId", "limits"}
    return sorted(found[0]["limits"], key=lambda limit: (limit["limitType"], limit["limitName"]))


def test_client_lifecycle(admin: httpx.Client, client_id: str) -> None:
    first = [limit_of("DEFAULT", "GLOBAL", "HOUR", 50), limit_of("API", "getUsers", "MIN", 5)]
    response = admin.post("/ratelimiter/configure-client", json={"clientId": client_id, "limits": first})
    assert (response.status_code, response.json()["status"]) == (200, "SUCCESS")
    assert configured(admin, client_id) == [first[1], first[0]]
    more = [
        limit_of("API", "getUsers", "DAY", 7),
        limit_of("METHOD", "POST", "SEC", 2),
        limit_of("API", "/web/*", "MIN", 1),
    ]
    admin.post("/ratelimiter/configure-client", json={"clientId": client_id, "limits": more})
    assert configured(admin, client_id) == [more[2], more[0], first[0], more[1]]

    before_ms = time.time() * 1000 - 1000
    call = {"clientId": client_id, "apiName": "getUsers", "methodName": "GET"}
    assert admin.post("/ratelimiter/verify-api-limit", json=call).status_code == 200
    response = admin.get("/ratelimiter/client-limits", params={"clientId": client_id})
    assert response.json()["clientId"] == client_id
    live = {(limit["limitType"], limit["limitName"]): limit for limit in response.json()["limits"]}
    users = live["API", "getUsers"]
    assert (users["availablePermits"], users["maxPermits"]) == (6, 7)
    assert users["timeIntervalLimit"] == {"timeUnit": "DAY", "maxRequests": 7}
    assert before_ms < users["lastRequestTimeStamp"] < time.time() * 1000 + 1000
    assert live["METHOD", "POST"]["availablePermits"] == 2
    assert live["DEFAULT", "GLOBAL"]["availablePermits"] == 49

    names = [{"limitType": "API", "limitName": "getUsers"}, {"limitType": "METHOD", "limitName": "DELETE"}]
    problem(admin.request("DELETE", "/ratelimiter/delete-limits", json={"clientId": client_id, "limits": names}), 404)
    assert len(configured(admin, client_id)) == 4  # all or nothing
    response = admin.request("DELETE", "/ratelimiter/delete-limits", json={"clientId": client_id, "limits": names[:1]})
    assert (response.status_code, response.json()["status"]) == (200, "SUCCESS")
    assert len(configured(admin, client_id)) == 3
    assert admin.delete("/ratelimiter/delete-client", params={"clientId": client_id}).status_code == 200
    assert configured(admin, client_id) == []
    problem(admin.delete("/ratelimiter/delete-client", params={"clientId": client_id}), 404)
    problem(admin.request("DELETE", "/ratelimiter/delete-limits", json={"clientId": client_id, "limits": names}), 404)


def test_seen_client_has_the_default_limits(admin: httpx.Client, name: str) -> None:
    problem(admin.get("/ratelimiter/client-limits", params={"clientId": name}), 404, name)
    admin.post("/ratelimiter/verify-api-limit", json={"clientId": name, "apiName": "a"})
    response = admin.get("/ratelimiter/client-limits", params={"clientId": name})
    assert response.status_code == 200
    (limit,) = response.json()["limits"]
    assert (limit["limitType"], limit["limitName"]) == ("DEFAULT", "GLOBAL")
    assert limit["timeIntervalLimit"] == {"timeUnit": "MIN", "maxRequests": 100}
    assert limit["maxPermits"] == 100
    assert configured(admin, name) == []


def test_path_pattern_of_a_client(admin: httpx.Client, client_id: str) -> None:
    limits = [limit_of("API", "/web/*", "DAY", 1)]
    admin.post("/ratelimiter/configure-client", json={"clientId": client_id, "limits": limits})
    statuses = [
        admin.post("/ratelimiter/verify-api-limit", json={"clientId": client_id, "apiName": path}).status_code
        for path in ("/web/a", "/web/b", "/other", "web")
    ]
    assert statuses == [200, 429, 200, 200]
