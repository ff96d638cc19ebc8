"""Four workers without any settings: they count as one, tell their numbers as one, and answer a repeat as one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from integration.service.processes.concurrent_clients import (
    Caller,
    admitted,
    answering_workers,
    crowd,
    metric,
    scrape,
    until,
)
from integration.service.processes.replays import REPEATS, told_once
from integration.service.service_process import Service

WORKERS = 4
LIMIT = 500
CALLERS = 64
Report = Callable[[str], None]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("workers"), arguments=("--workers", str(WORKERS))) as started:
        until("all workers answer", lambda: len(answering_workers(started)) == WORKERS)
        with Caller(started, started.key) as admin:
            for name in ("exact", "counted", "repeated"):
                admin.limit(name, LIMIT, endpoint_pattern=f"/{name}")
        until("all workers know the rules", lambda: all_know(started, "/repeated"))
        yield started
        assert "Traceback" not in started.logged


def all_know(service: Service, endpoint: str) -> bool:
    """Whether none of them, and one at least, answers a question about an endpoint as if it had no rule."""
    workers: dict[str, str] = {}
    while len(workers) < WORKERS:
        with Caller(service) as caller:
            told = caller.ask("POST", "/api/v1/quota", asked("nobody", endpoint))
            workers[told.worker] = told.data["reason"]
    return "no_rule" not in workers.values()


def asked(user: str, endpoint: str) -> dict[str, object]:
    return {"dimension": "user", "identifier": user, "endpoint": endpoint}


def test_four_workers_admit_exactly_the_limit(service: Service, report: Report) -> None:
    answers = crowd([service], [asked("exact", "/exact")] * (3 * LIMIT), CALLERS, workers=WORKERS)
    shares = Counter(told.worker for told in answers)
    report(
        f"{len(answers)} checks over {CALLERS} connections, answered by {len(shares)} workers "
        f"({', '.join(map(str, sorted(shares.values())))}): {admitted(answers)} of {LIMIT} admitted"
    )
    assert admitted(answers) == LIMIT
    assert len(shares) == WORKERS
    with Caller(service) as caller:
        assert caller.check(asked("exact", "/exact")).data["remaining"] == 0


def test_metrics_are_those_of_all_workers(service: Service, report: Report) -> None:
    answers = crowd([service], [asked(f"user-{n % 7}", "/counted") for n in range(700)], CALLERS, workers=WORKERS)
    assert len({told.worker for told in answers}) == WORKERS
    assert admitted(answers) == 700

    def counted() -> float:
        return metric(scrape(service), "crestgate_allowed_total", 'rule="counted"')

    seconds = until("all are counted", lambda: counted() >= 700, 10)
    assert counted() == 700
    assert metric(scrape(service), "crestgate_workers") == WORKERS
    report(f"the checks of {WORKERS} workers were all in one scrape after {seconds:.2f} s")


def test_fifty_concurrent_replays_consume_once(service: Service, report: Report) -> None:
    once = asked("repeated", "/repeated")
    answers = crowd([service], [once] * REPEATS, REPEATS, {"Idempotency-Key": "workers"}, WORKERS)
    told_once(answers, LIMIT - 1, service)
    shares = Counter(told.worker for told in answers)
    assert len(shares) == WORKERS
    with Caller(service) as caller:
        assert caller.ask("POST", "/api/v1/quota", once).data["remaining"] == LIMIT - 1
        other = caller.check({**once, "cost": 2}, {"Idempotency-Key": "workers"})
        assert (other.status, other.data["status"]) == (422, 422)
    report(f"{REPEATS} repeats at once, answered by {len(shares)} workers, consumed 1")


def test_history_has_the_checks_of_all_workers(service: Service, report: Report) -> None:
    denied = 2 * LIMIT + 1
    with Caller(service, service.key) as admin:

        def recorded() -> dict[str, Any]:
            told: dict[str, Any] = admin.ask("GET", "/api/v1/stats?rule=exact&step=minute").data
            return told

        seconds = until("the history has them", lambda: recorded()["totals"]["denied"] >= denied, 30)
        told = recorded()
        assert told["totals"] == {"allowed": LIMIT, "denied": denied, "shadowed": 0}
        assert sum(minute["allowed"] for minute in told["series"]) == LIMIT
        top = admin.ask("GET", "/api/v1/stats").data["top"]
        assert {"subject": "user:exact", "allowed": LIMIT, "denied": denied} in top
    report(f"{LIMIT} allowed and {denied} denied by {WORKERS} workers: in the history {seconds:.1f} s after this asked")


def test_rules_written_through_one_worker_apply_in_the_others(
    tmp_path_factory: pytest.TempPathFactory, report: Report
) -> None:
    """SQLite tells nobody of a change, and here the workers look for one every minute: they tell each other."""
    folder = tmp_path_factory.mktemp("told")
    seldom = {"CRESTGATE_REFRESH_SECONDS": "60"}
    with Service(folder, environment=seldom, arguments=("--workers", str(WORKERS))) as service:
        until("all workers answer", lambda: len(answering_workers(service)) == WORKERS)
        with Caller(service, service.key) as admin:
            admin.limit("told", LIMIT, endpoint_pattern="/told")
        began = time.monotonic()
        until("all workers know it", lambda: all_know(service, "/told"), 20)
        report(f"a rule made through one of {WORKERS} workers was known to all after {time.monotonic() - began:.2f} s")
