"""Redis is killed under load: the policy answers, everybody can see it, and when Redis is back limits hold again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from integration.service.processes.concurrent_clients import Caller, Load, Told, admitted, crowd, metric, scrape, until
from integration.service.processes.parallel_start import together
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
    with together(*starts) as started:
        yield dict(zip(POLICIES, started, strict=True))


def readiness(service: Service) -> Told:
    with Caller(service) as caller:
        return caller.ask("GET", "/readyz")


@pytest.mark.parametrize("policy", POLICIES)
def test_redis_is_killed_and_comes_back(
    policy: str, services: dict[str, Service], redis: RedisServer, report: Report
) -> None:
    service, reason = services[policy], REASONS[policy]
    few = {"key": "before", "plans": ["few"]}
    assert admitted(crowd([service], [few] * (2 * LIMIT), 20)) == LIMIT
    with Load(service, {"key": "loud", "plans": ["many"]}, 8, pause=0.005) as load:
        until("there is load", lambda: len(load.answers) > 50)
        redis.kill()
        away = until("the policy answers", lambda: load.so_far()[-1].data["reason"] == reason)
        not_ready = until("it is not ready", lambda: readiness(service).status == 503, 10)
        assert readiness(service).data["detail"].startswith("not ready: counters: ")
        while_away(policy, service)
        redis.start()
        back = until("Redis decides again", lambda: load.so_far()[-1].data["reason"] == "ok")
        ready = until("it is ready", lambda: readiness(service).status == 200, 10)
    answers = load.so_far()
    assert load.broken == 0
    assert {told.status for told in answers} == {200}
    assert {told.data["reason"] for told in answers} == {"ok", reason}
    failed = sum(told.data["reason"] == reason for told in answers)
    numbers = scrape(service)
    assert metric(numbers, "crestgate_store_errors_total") >= failed
    if policy == "open":
        assert metric(numbers, "crestgate_fail_open_total") >= failed
    else:
        assert metric(numbers, "crestgate_fail_open_total") == 0
    assert failed
    assert f"on_store_error={policy}" in service.logged
    assert admitted(crowd([service], [{"key": "after", "plans": ["few"]}] * (3 * LIMIT), 20)) == LIMIT
    report(
        f"{len(answers)} checks, {failed} answered by the policy, the first {away:.2f} s after Redis was killed, not "
        f"ready {not_ready:.2f} s later; decided again {back:.2f} s after it was back, and ready {ready:.2f} s later"
    )


def while_away(policy: str, service: Service) -> None:
    """Nobody decides but the policy."""
    answers = crowd([service], [{"key": "meanwhile", "plans": ["few"]}] * (2 * LIMIT), 10)
    decisions = [told.data for told in answers]
    assert {decision["reason"] for decision in decisions} == {REASONS[policy]}
    allowed = sum(decision["allowed"] for decision in decisions)
    assert allowed == {"open": 2 * LIMIT, "closed": 0, "local": LIMIT}[policy]
    assert metric(scrape(service), "crestgate_breaker_state") > 0
