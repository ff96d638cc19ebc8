"""All workers report the same data about clients, also after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from integration.service.processes.concurrent_clients import Client, responding_workers, wait_until
from integration.service.service_process import Service

WORKERS = 2
DAY = {"timeUnit": "DAY", "maxRequests": 100}
SECOND = {"timeUnit": "SEC", "maxRequests": 100}
LIMITS = [
    {"limitType": "METHOD", "limitName": "PUT", "timeIntervalLimit": DAY},
    {"limitType": "METHOD", "limitName": "GET", "timeIntervalLimit": SECOND},
    {"limitType": "DEFAULT", "limitName": "GLOBAL", "timeIntervalLimit": DAY},
    {"limitType": "API", "limitName": "getUsers", "timeIntervalLimit": DAY},
]


def responses_by_worker(service: Service, path: str) -> dict[str, Any]:
    """The response of each worker."""
    bodies: dict[str, Any] = {}
    while len(bodies) < WORKERS:
        with Client(service, service.key) as client:
            response = client.request("GET", path)
            bodies[response.worker] = response.data
    return bodies


def last_requests(body: Any) -> dict[str, int | None]:
    return {entry["limitName"]: entry["lastRequestTimeStamp"] for entry in body.get("limits", [])}


def all_equal(bodies: dict[str, Any]) -> bool:
    return len({json.dumps(body, sort_keys=True) for body in bodies.values()}) == 1


def test_workers_report_the_same_clients_after_a_restart(serve: Callable[..., Service]) -> None:
    service = serve(arguments=("--workers", str(WORKERS)))
    wait_until("all workers respond", lambda: len(responding_workers(service)) == WORKERS)
    with Client(service, service.key) as client:
        for limit in LIMITS:
            body = {"clientId": "shop", "limits": [limit]}
            assert client.request("POST", "/ratelimiter/configure-client", body).status == 200
        verify = {"clientId": "shop", "apiName": "getOrders", "methodName": "GET"}
        assert client.request("POST", "/ratelimiter/verify-api-limit", verify).status == 200
        stranger_request = {"clientId": "stranger", "apiName": "getOrders", "methodName": "GET"}
        assert client.request("POST", "/ratelimiter/verify-api-limit", stranger_request).status == 200
        assert client.check({"key": "tenant-7"}).status == 200

    def known() -> bool:
        shop = responses_by_worker(service, "/ratelimiter/client-limits?clientId=shop")
        stranger = responses_by_worker(service, "/ratelimiter/client-limits?clientId=stranger")
        return all(last_requests(body).get("GET") for body in shop.values()) and all(
            last_requests(body).get("GLOBAL") for body in stranger.values()
        )

    wait_until("all workers know both clients", known)
    shop = responses_by_worker(service, "/ratelimiter/client-limits?clientId=shop")
    times = [last_requests(body) for body in shop.values()]
    assert times[0] == times[1]
    assert [name for name, time in times[0].items() if time is None] == ["getUsers", "PUT"], "these were not used"
    for path in ("/ratelimiter/configured-limits", "/admin/metrics"):
        wait_until(
            f"all workers respond equally to {path}",
            lambda path=path: all_equal(responses_by_worker(service, path)),  # type: ignore[misc]
        )
    (listed,) = responses_by_worker(service, "/ratelimiter/configured-limits").popitem()[1]
    assert [entry["limitName"] for entry in listed["limits"]] == ["getUsers", "GLOBAL", "GET", "PUT"]

    assert service.stop() == 0
    again = serve(arguments=("--workers", str(WORKERS)), key=service.key)
    wait_until("all workers respond", lambda: len(responding_workers(again)) == WORKERS)
    for body in responses_by_worker(again, "/ratelimiter/client-limits?clientId=shop").values():
        assert last_requests(body) == times[0]
    for body in responses_by_worker(again, "/ratelimiter/client-limits?clientId=stranger").values():
        assert last_requests(body)["GLOBAL"] is not None
