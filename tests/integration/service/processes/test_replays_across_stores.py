"""Repeats of one request that race over several workers consume once, wherever the counters are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from integration.service.processes.concurrent_clients import Caller, Told, crowd, until
from integration.service.processes.parallel_start import together
from integration.service.processes.replays import REPEATS, told_once
from integration.service.service_process import Service

STORES = ["redis_server", "redis_cluster", "mariadb"]
WORKERS = 2
LIMIT = 1000
CONFIG = """\
store: '{url}{joint}prefix=repeats&timeout_ms=20000'
plans: {{once: {limit}/year}}
"""
KEY = {"Idempotency-Key": "a request"}


@pytest.fixture(scope="module")
def services(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Service]]:
    """A service on each store. They start at the same time."""
    starts = []
    for store in STORES:
        url = request.getfixturevalue(store).url
        config = CONFIG.format(url=url, joint="&" if "?" in url else "?", limit=LIMIT)
        starts.append(partial(Service, tmp_path_factory.mktemp(store), config, arguments=("--workers", str(WORKERS))))
    with together(*starts) as started:
        for service in started:
            until_all_answer(service)
        yield dict(zip(STORES, started, strict=True))


def until_all_answer(service: Service) -> None:
    """A worker that could not reach its store when it began, on a busy machine, answers by the policy until it has."""
    until("all workers are ready", lambda: all_ready(service))


def all_ready(service: Service) -> bool:
    ready: dict[str, bool] = {}
    while len(ready) < WORKERS:
        with Caller(service) as caller:
            told = caller.ask("GET", "/readyz")
            ready[told.worker] = told.status == 200
    return all(ready.values())


@pytest.mark.parametrize("store", STORES)
def test_fifty_replays_consume_once(store: str, services: dict[str, Service], report: Callable[[str], None]) -> None:
    service = services[store]
    once = {"key": "user:42", "plans": ["once"]}
    answers = crowd([service], [once] * REPEATS, REPEATS, KEY, WORKERS)
    told_once(answers, LIMIT - 1, service)
    shares = Counter(told.worker for told in answers)
    assert len(shares) == WORKERS
    with Caller(service) as caller:
        assert caller.ask("POST", "/api/v1/quota", once).data["remaining"] == LIMIT - 1
        first = without_reason(answers[0])
        later = caller.check(once, KEY)
        assert later.data["reason"] == "replayed"
        assert without_reason(later) == first
        other = caller.check({**once, "cost": 2}, KEY)
        assert (other.status, other.headers["content-type"]) == (422, "application/problem+json")
        assert caller.ask("POST", "/api/v1/quota", once).data["remaining"] == LIMIT - 1
    report(f"{REPEATS} repeats at once, answered by {len(shares)} workers, consumed 1")


def without_reason(told: Told) -> dict[str, object]:
    return {name: value for name, value in told.data.items() if name != "reason"}
