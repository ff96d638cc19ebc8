"""Duplicate keys in a JSON body are refused everywhere: a proxy that checks one value must not let the other pass."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from integration.service.service_process import Service

CONFIG = """
rules:
  - {rule_id: users, dimension: user, limit: 1, window_seconds: 86400, algorithm: fixed_window}
plans: {gold: 5/day using fixed_window}
envoy: {config: descriptors.yaml}
"""
DESCRIPTORS = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}]\n"
BODIES = {
    "POST /api/v1/check": '{"dimension": "user", "identifier": "eve", "identifier": "42"}',
    "POST /api/v1/check/batch": '{"checks": [{"dimension": "user", "identifier": "42", "cost": 1, "cost": 1}]}',
    "POST /api/v1/quota": '{"key": "user:42", "key": "eve", "plans": ["gold"]}',
    "POST /api/v1/reset": '{"key": "user:42", "plans": ["gold"], "plans": ["gold"]}',
    "POST /json": '{"domain": "d", "domain": "e", "descriptors": []}',
    "POST /ratelimiter/verify-api-limit": '{"clientId": "a", "clientId": "b"}',
    "POST /api/v1/rules": '{"name": "n", "dimension": "ip", "limit": 1, "limit": 9, "window_seconds": 60}',
    "PUT /api/v1/rules/n": '{"name": "n", "dimension": "ip", "limit": 1, "window_seconds": 6, "window_seconds": 60}',
    "POST /api/v1/simulate": '{"rules": [], "minutes": 5, "minutes": 60}',
    "POST /api/v1/plans": '{"name": "p", "name": "q", "limits": "1/s"}',
    "PUT /api/v1/users/42/tier": '{"tier": "free", "tier": "premium"}',
    "POST /api/v1/users/42/override": '{"rule_id": "users", "limit": 1, "limit": 9, "duration_seconds": 60}',
    "POST /admin/policies": '{"key": "k", "capacity": 1, "capacity": 9}',
    "POST /ratelimiter/configure-client": '{"clientId": "a", "clientId": "b", "limits": []}',
    "DELETE /ratelimiter/delete-limits": '{"clientId": "a", "clientId": "b", "limits": []}',
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("duplicates")
    (folder / "descriptors.yaml").write_text(DESCRIPTORS)
    with Service(folder, config=CONFIG) as started:
        yield started
        assert "Traceback" not in started.logged


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[httpx.Client]:
    with service.client(service.key) as client:
        yield client


@pytest.mark.parametrize("call", BODIES)
def test_duplicate_key_is_refused_by_name(call: str, client: httpx.Client) -> None:
    method, path = call.split()
    answer = client.request(method, path, content=BODIES[call].encode(), headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    field = answer.json()["problems"][0]["field"]
    assert BODIES[call].count(f'"{field}"') >= 2
    assert "written twice" in answer.json()["detail"]


def test_refused_body_consumes_nothing(client: httpx.Client) -> None:
    for path in ("/api/v1/check", "/api/v1/check/batch"):
        assert client.post(path, content=BODIES[f"POST {path}"].encode()).status_code == 400
    check = {"dimension": "user", "identifier": "42", "cost": 1}
    assert [client.post("/api/v1/check", json=check).json()["allowed"] for _ in range(2)] == [True, False]
