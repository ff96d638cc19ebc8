"""Rules and plans with leases, of two workers on one Redis: declared over HTTP, decided from slices, never too much."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from integration.child_process import wait_until
from integration.service.api_helpers import problem
from integration.service.service_process import GENEROUS, Service
from servers.process import GivenServer
from servers.redis import RedisServer

YEAR = 365 * 86_400
LIMIT = 500
CLIENTS = 8
EACH = 100
RULE: dict[str, Any] = {
    "rule_id": "hot",
    "dimension": "user",
    "endpoint_pattern": "/hot",
    "limit": LIMIT,
    "window_seconds": YEAR,
    "algorithm": "fixed_window",
    "lease": True,
}
PLAN = {"name": "hot", "limits": [f"{LIMIT}/year using fixed_window"], "lease": True}


def is_known(service: Service) -> bool:
    """Whether the rule and the plan are, to the worker that accepts another connection."""
    with service.client() as client:
        checks = [{"context": {"user": "probe", "path": "/hot"}}, {"key": "probe", "plans": ["hot"]}]
        answers = [client.post("/api/v1/check", json=check) for check in checks]
    return all(answer.status_code == 200 and answer.json()["reason"] == "ok" for answer in answers)


@pytest.fixture(scope="module")
def leased(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer | GivenServer) -> Iterator[Service]:
    config = f"store: {redis_server.url}?prefix={uuid4().hex}&timeout_ms=10000\n"
    with Service(tmp_path_factory.mktemp("leases"), config, GENEROUS, ("--workers", "2")) as started:
        with started.client(started.key) as admin:
            assert admin.post("/api/v1/rules", json=RULE).status_code == 201
            assert admin.post("/api/v1/plans", json=PLAN).status_code == 201
        wait_until("both workers know the rule and the plan", lambda: all(is_known(started) for _ in range(10)))
        yield started
        assert "Traceback" not in started.logged


@pytest.fixture
def admin(leased: Service) -> Iterator[httpx.Client]:
    with leased.client(leased.key) as client:
        yield client


def cache_hits(client: httpx.Client, cache: str) -> float:
    families = {one.name: one for one in text_string_to_metric_families(client.get("/metrics").text)}
    samples = families["crestgate_cache_hits"].samples
    return sum(float(sample.value) for sample in samples if sample.labels["cache"] == cache)


def test_lease_is_shown_where_limits_are(admin: httpx.Client) -> None:
    assert admin.get("/api/v1/rules/hot").json()["lease"] is True
    assert admin.get("/api/v1/plans/hot").json() == PLAN
    (limit,) = admin.get("/api/v1/users/someone/limits").json()["limits"]
    assert (limit["rule"], limit["lease"]) == ("hot", True)
    explained = admin.post("/api/v1/explain", json={"context": {"user": "someone", "path": "/hot"}}).json()
    assert explained["rules"][0]["lease"] is True
    refused = problem(admin.post("/api/v1/rules", json={**RULE, "rule_id": "x", "algorithm": "leaky_bucket"}), 400)
    assert refused["detail"].startswith("lease: is not possible with leaky_bucket: ")


@pytest.mark.parametrize("kind", ["rule", "plan"])
def test_leased_limit_is_exact(leased: Service, admin: httpx.Client, kind: str) -> None:
    user = uuid4().hex
    body: dict[str, Any] = {"context": {"user": user, "path": "/hot"}}
    if kind == "plan":
        body = {"key": user, "plans": ["hot"]}

    def check(_: int) -> int:
        with leased.client() as client:  # with a connection of its own, so that both workers take part
            answers = [client.post("/api/v1/check", json=body).json() for _ in range(EACH)]
        assert {answer["reason"] for answer in answers} <= {"ok", "limited"}
        return sum(int(answer["allowed"]) for answer in answers)

    before = cache_hits(admin, "leases")
    with ThreadPoolExecutor(CLIENTS) as pool:
        allowed = sum(pool.map(check, range(CLIENTS)))
    assert allowed <= LIMIT
    assert cache_hits(admin, "leases") > before

    def rest_is_allowed() -> bool:  # what the workers have not used of their slices goes back
        nonlocal allowed
        allowed += int(admin.post("/api/v1/check", json=body).json()["allowed"])
        assert allowed <= LIMIT
        return allowed == LIMIT

    if allowed < LIMIT:
        wait_until("all of the limit is used", rest_is_allowed)


def test_known_denials_are_counted(admin: httpx.Client) -> None:
    cold = {**RULE, "rule_id": "cold", "endpoint_pattern": "/cold", "limit": 3, "lease": False}
    assert admin.post("/api/v1/rules", json=cold).status_code == 201
    body = {"context": {"user": uuid4().hex, "path": "/cold"}}
    before = cache_hits(admin, "denials")
    allowed = [admin.post("/api/v1/check", json=body).json()["allowed"] for _ in range(20)]
    assert allowed == [True] * 3 + [False] * 17
    assert before < cache_hits(admin, "denials") <= before + 16, "the first denial is the store's"
