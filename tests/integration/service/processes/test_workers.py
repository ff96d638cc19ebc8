"""Four workers without any settings share counters, metrics and idempotency records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from integration.service.processes.concurrent_clients import (
    Client,
    check_concurrently,
    count_admitted,
    metric_sum,
    responding_workers,
    scrape,
    wait_until,
)
from integration.service.processes.replays import REPLAYS, assert_decided_once
from integration.service.service_process import Service

WORKERS = 4
LIMIT = 500
CALLERS = 64
Report = Callable[[str], None]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("workers"), arguments=("--workers", str(WORKERS))) as started:
        wait_until("all workers respond", lambda: len(responding_workers(started)) == WORKERS)
        with Client(started, started.key) as admin:
            for name in ("exact", "counted", "repeated"):
                admin.put_rule(name, LIMIT, endpoint_pattern=f"/{name}")
        wait_until("all workers have the rules", lambda: all_have_rule(started, "/repeated"))
        yield started
        assert "Traceback" not in started.logged


def all_have_rule(service: Service, endpoint: str) -> bool:
    """Whether every worker has a rule for this endpoint."""
    workers: dict[str, str] = {}
    while len(workers) < WORKERS:
        with Client(service) as client:
            response = client.request("POST", "/api/v1/quota", user_check("nobody", endpoint))
            workers[response.worker] = response.data["reason"]
    return "no_rule" not in workers.values()


def user_check(user: str, endpoint: str) -> dict[str, object]:
    return {"dimension": "user", "identifier": user, "endpoint": endpoint}


def test_four_workers_admit_exactly_the_limit(service: Service, report: Report) -> None:
    responses = check_concurrently([service], [user_check("exact", "/exact")] * (3 * LIMIT), CALLERS, workers=WORKERS)
    shares = Counter(response.worker for response in responses)
    report(
        f"{len(responses)} checks over {CALLERS} connections, answered by {len(shares)} workers "
        f"({', '.join(map(str, sorted(shares.values())))}): {count_admitted(responses)} of {LIMIT} admitted"
    )
    assert count_admitted(responses) == LIMIT
    assert len(shares) == WORKERS
    with Client(service) as client:
        assert client.check(user_check("exact", "/exact")).data["remaining"] == 0


def test_metrics_are_those_of_all_workers(service: Service, report: Report) -> None:
    responses = check_concurrently(
        [service], [user_check(f"user-{n % 7}", "/counted") for n in range(700)], CALLERS, workers=WORKERS
    )
    assert len({response.worker for response in responses}) == WORKERS
    assert count_admitted(responses) == 700

    def counted() -> float:
        return metric_sum(scrape(service), "crestgate_allowed_total", 'rule="counted"')

    seconds = wait_until("all are counted", lambda: counted() >= 700, 10)
    assert counted() == 700
    assert metric_sum(scrape(service), "crestgate_workers") == WORKERS
    report(f"the checks of {WORKERS} workers were all in one scrape after {seconds:.2f} s")


def test_fifty_concurrent_replays_consume_once(service: Service, report: Report) -> None:
    request = user_check("repeated", "/repeated")
    responses = check_concurrently([service], [request] * REPLAYS, REPLAYS, {"Idempotency-Key": "workers"}, WORKERS)
    assert_decided_once(responses, LIMIT - 1, service)
    shares = Counter(response.worker for response in responses)
    assert len(shares) == WORKERS
    with Client(service) as client:
        assert client.request("POST", "/api/v1/quota", request).data["remaining"] == LIMIT - 1
        other = client.check({**request, "cost": 2}, {"Idempotency-Key": "workers"})
        assert (other.status, other.data["status"]) == (422, 422)
    report(f"{REPLAYS} concurrent replays, handled by {len(shares)} workers, consumed 1")


def test_history_has_the_checks_of_all_workers(service: Service, report: Report) -> None:
    denied = 2 * LIMIT + 1
    with Client(service, service.key) as admin:

        def recorded() -> dict[str, Any]:
            stats: dict[str, Any] = admin.request("GET", "/api/v1/stats?rule=exact&step=minute").data
            return stats

        seconds = wait_until("the history has them", lambda: recorded()["totals"]["denied"] >= denied, 30)
        stats = recorded()
        assert stats["totals"] == {"allowed": LIMIT, "denied": denied, "shadowed": 0}
        assert sum(minute["allowed"] for minute in stats["series"]) == LIMIT
        top = admin.request("GET", "/api/v1/stats").data["top"]
        assert {"subject": "user:exact", "allowed": LIMIT, "denied": denied} in top
    report(f"{LIMIT} allowed and {denied} denied by {WORKERS} workers: in the history after {seconds:.1f} s of polling")


def test_rules_written_through_one_worker_apply_in_the_others(
    tmp_path_factory: pytest.TempPathFactory, report: Report
) -> None:
    """SQLite sends no notifications and polling is once a minute here: the workers notify each other."""
    folder = tmp_path_factory.mktemp("notified")
    slow_polling = {"CRESTGATE_REFRESH_SECONDS": "60"}
    with Service(folder, environment=slow_polling, arguments=("--workers", str(WORKERS))) as service:
        wait_until("all workers respond", lambda: len(responding_workers(service)) == WORKERS)
        with Client(service, service.key) as admin:
            admin.put_rule("notified", LIMIT, endpoint_pattern="/notified")
        began = time.monotonic()
        wait_until("all workers have the rule", lambda: all_have_rule(service, "/notified"), 20)
        report(f"a rule made through one of {WORKERS} workers was known to all after {time.monotonic() - began:.2f} s")
