"""Redis is killed under load: the failure policy decides, health and metrics show it, limits hold after recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from integration.service.processes.concurrent_clients import (
    Client,
    Load,
    Response,
    check_concurrently,
    count_admitted,
    metric_sum,
    scrape,
    wait_until,
)
from integration.service.processes.parallel_start import start_services
from integration.service.service_process import Service
from servers.redis import RedisServer

POLICIES = ["open", "closed", "local"]
LIMIT = 100
REASONS = {"open": "fail_open", "closed": "fail_closed", "local": "fallback"}
CONFIG = """\
store: '{url}?timeout_ms=2000&prefix={policy}'
on_store_error: {policy}
plans: {{few: {limit}/year, many: 1000000/year}}
"""
Report = Callable[[str], None]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def services(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Service]]:
    """One service for each policy, all on the same Redis."""

    starts = []
    for policy in POLICIES:
        config = CONFIG.format(url=redis.url, policy=policy, limit=LIMIT)
        starts.append(partial(Service, tmp_path_factory.mktemp(policy), config))
    with start_services(*starts) as started:
        yield dict(zip(POLICIES, started, strict=True))


def readiness(service: Service) -> Response:
    with Client(service) as client:
        return client.request("GET", "/readyz")


@pytest.mark.parametrize("policy", POLICIES)
def test_redis_is_killed_and_restarted(
    policy: str, services: dict[str, Service], redis: RedisServer, report: Report
) -> None:
    service, reason = services[policy], REASONS[policy]
    few = {"key": "before", "plans": ["few"]}
    assert count_admitted(check_concurrently([service], [few] * (2 * LIMIT), 20)) == LIMIT
    with Load(service, {"key": "loud", "plans": ["many"]}, 8, pause=0.005) as load:
        wait_until("there is load", lambda: len(load.responses) > 50)
        redis.kill()
        outage = wait_until("the policy answers", lambda: load.snapshot()[-1].data["reason"] == reason)
        noticed = wait_until("readiness shows it", lambda: readiness(service).data["unreachable"] == ["counters"], 10)
        check_readiness_during_outage(policy, service)
        check_policy_during_outage(policy, service)
        redis.start()
        recovered = wait_until("Redis decides again", lambda: load.snapshot()[-1].data["reason"] == "ok")
        ready = wait_until("it is ready", lambda: readiness(service).data["status"] == "ready", 10)
    responses = load.snapshot()
    assert load.broken_connections == 0
    assert {response.status for response in responses} == {200}
    assert {response.data["reason"] for response in responses} == {"ok", reason}
    failed = sum(response.data["reason"] == reason for response in responses)
    numbers = scrape(service)
    assert metric_sum(numbers, "crestgate_store_errors_total") >= failed
    if policy == "open":
        assert metric_sum(numbers, "crestgate_fail_open_total") >= failed
    else:
        assert metric_sum(numbers, "crestgate_fail_open_total") == 0
    assert failed
    assert f"on_store_error={policy}" in service.logged
    assert (
        count_admitted(check_concurrently([service], [{"key": "after", "plans": ["few"]}] * (3 * LIMIT), 20)) == LIMIT
    )
    report(
        f"{len(responses)} checks, {failed} decided by the policy, the first {outage:.2f} s after the kill, "
        f"seen by /readyz {noticed:.2f} s later; recovered {recovered:.2f} s after the restart, "
        f"ready {ready:.2f} s later"
    )


def check_readiness_during_outage(policy: str, service: Service) -> None:
    """A service whose policy answers checks stays ready; one that denies everything does not."""
    response = readiness(service)
    assert "127.0.0.1" in response.data["checks"]["counters"]
    if policy == "closed":
        assert response.status == 503
        assert response.data["detail"].startswith("not ready: counters: ")
    else:
        assert (response.status, response.data["status"]) == (200, "degraded")


def check_policy_during_outage(policy: str, service: Service) -> None:
    """All decisions are made by the policy."""
    responses = check_concurrently([service], [{"key": "meanwhile", "plans": ["few"]}] * (2 * LIMIT), 10)
    decisions = [response.data for response in responses]
    assert {decision["reason"] for decision in decisions} == {REASONS[policy]}
    allowed = sum(decision["allowed"] for decision in decisions)
    assert allowed == {"open": 2 * LIMIT, "closed": 0, "local": LIMIT}[policy]
    assert metric_sum(scrape(service), "crestgate_breaker_state") > 0


def test_workers_share_out_the_local_fallback(tmp_path: Path) -> None:
    with RedisServer() as own:
        config = (
            CONFIG.format(url=own.url, policy="local", limit=LIMIT) + "fallback_instances: 2\nserver: {workers: 2}\n"
        )
        with Service(tmp_path, config) as service:
            own.kill()
            # Many connections, so that both workers get some.
            responses = check_concurrently([service], [{"key": "meanwhile", "plans": ["few"]}] * (4 * LIMIT), 20)
    decisions = [response.data for response in responses]
    assert {decision["reason"] for decision in decisions} == {"fallback"}
    assert {decision["limit"] for decision in decisions} == {LIMIT // 4}, "two instances of two workers"
    assert sum(decision["allowed"] for decision in decisions) <= LIMIT // 2, "what this instance may admit"
