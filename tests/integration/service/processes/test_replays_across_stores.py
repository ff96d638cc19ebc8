"""Concurrent replays of one request on several workers consume once, on every store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from integration.service.processes.concurrent_clients import Client, Response, check_concurrently, wait_until
from integration.service.processes.parallel_start import start_services
from integration.service.processes.replays import REPLAYS, assert_decided_once
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
    with start_services(*starts) as started:
        for service in started:
            wait_until_ready(service)
        yield dict(zip(STORES, started, strict=True))


def wait_until_ready(service: Service) -> None:
    """On a busy machine a worker may miss its store at startup; it then applies the failure policy until connected."""
    wait_until("all workers are ready", lambda: all_ready(service))


def all_ready(service: Service) -> bool:
    ready: dict[str, bool] = {}
    while len(ready) < WORKERS:
        with Client(service) as client:
            response = client.request("GET", "/readyz")
            ready[response.worker] = response.status == 200
    return all(ready.values())


@pytest.mark.parametrize("store", STORES)
def test_fifty_replays_consume_once(store: str, services: dict[str, Service], report: Callable[[str], None]) -> None:
    service = services[store]
    request = {"key": "user:42", "plans": ["once"]}
    responses = check_concurrently([service], [request] * REPLAYS, REPLAYS, KEY, WORKERS)
    assert_decided_once(responses, LIMIT - 1, service)
    shares = Counter(response.worker for response in responses)
    assert len(shares) == WORKERS
    with Client(service) as client:
        assert client.request("POST", "/api/v1/quota", request).data["remaining"] == LIMIT - 1
        first = without_reason(responses[0])
        later = client.check(request, KEY)
        assert later.data["reason"] == "replayed"
        assert without_reason(later) == first
        other = client.check({**request, "cost": 2}, KEY)
        assert (other.status, other.headers["content-type"]) == (422, "application/problem+json")
        assert client.request("POST", "/api/v1/quota", request).data["remaining"] == LIMIT - 1
    report(f"{REPLAYS} concurrent replays, handled by {len(shares)} workers, consumed 1")


def without_reason(response: Response) -> dict[str, object]:
    return {name: value for name, value in response.data.items() if name != "reason"}
