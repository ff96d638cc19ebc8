"""What is told of clients is the same whichever worker is asked, and is known after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from integration.service.processes.concurrent_clients import Caller, answering_workers, until
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


def told_by_all(service: Service, path: str) -> dict[str, Any]:
    """The answer of each worker."""
    answers: dict[str, Any] = {}
    while len(answers) < WORKERS:
        with Caller(service, service.key) as caller:
            told = caller.ask("GET", path)
            answers[told.worker] = told.data
    return answers


def last_requests(answer: Any) -> dict[str, int | None]:
    return {one["limitName"]: one["lastRequestTimeStamp"] for one in answer.get("limits", [])}


def same(answers: dict[str, Any]) -> bool:
    return len({json.dumps(answer, sort_keys=True) for answer in answers.values()}) == 1


def test_workers_report_the_same_clients_after_a_restart(serve: Callable[..., Service]) -> None:
    service = serve(arguments=("--workers", str(WORKERS)))
    until("all workers answer", lambda: len(answering_workers(service)) == WORKERS)
    with Caller(service, service.key) as caller:
        for limit in LIMITS:
            body = {"clientId": "shop", "limits": [limit]}
            assert caller.ask("POST", "/ratelimiter/configure-client", body).status == 200
        verify = {"clientId": "shop", "apiName": "getOrders", "methodName": "GET"}
        assert caller.ask("POST", "/ratelimiter/verify-api-limit", verify).status == 200
        seen = {"clientId": "stranger", "apiName": "getOrders", "methodName": "GET"}
        assert caller.ask("POST", "/ratelimiter/verify-api-limit", seen).status == 200
        assert caller.check({"key": "tenant-7"}).status == 200

    def known() -> bool:
        shop = told_by_all(service, "/ratelimiter/client-limits?clientId=shop")
        stranger = told_by_all(service, "/ratelimiter/client-limits?clientId=stranger")
        return all(last_requests(answer).get("GET") for answer in shop.values()) and all(
            last_requests(answer).get("GLOBAL") for answer in stranger.values()
        )

    until("all workers know both clients", known)
    shop = told_by_all(service, "/ratelimiter/client-limits?clientId=shop")
    times = [last_requests(answer) for answer in shop.values()]
    assert times[0] == times[1]
    assert [name for name, time in times[0].items() if time is None] == ["getUsers", "PUT"], "neither was used"
    for path in ("/ratelimiter/configured-limits", "/admin/metrics"):
        until(f"all tell the same of {path}", lambda path=path: same(told_by_all(service, path)))  # type: ignore[misc]
    (listed,) = told_by_all(service, "/ratelimiter/configured-limits").popitem()[1]
    assert [one["limitName"] for one in listed["limits"]] == ["getUsers", "GLOBAL", "GET", "PUT"]

    assert service.stop() == 0
    again = serve(arguments=("--workers", str(WORKERS)), key=service.key)
    until("all workers answer", lambda: len(answering_workers(again)) == WORKERS)
    for answer in told_by_all(again, "/ratelimiter/client-limits?clientId=shop").values():
        assert last_requests(answer) == times[0]
    for answer in told_by_all(again, "/ratelimiter/client-limits?clientId=stranger").values():
        assert last_requests(answer)["GLOBAL"] is not None
