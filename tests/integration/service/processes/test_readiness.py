"""/readyz and grpc.health.v1 with several stores: each is named, and the settings say what makes it not ready."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from integration.service.processes.concurrent_clients import wait_until
from integration.service.service_process import TIMEOUT, Service
from servers.redis import RedisServer

Serve = Callable[..., Service]
STORES = """\
migrate: {{from: '{old}?timeout_ms=2000', to: '{new}?timeout_ms=2000', percent: {percent}}}
stores: {{hot: '{hot}?timeout_ms=2000'}}
rules_store: '{rules}'
server: {{ready_without_store: {without}}}
"""
SERVING, NOT_SERVING = 1, 2


def readiness(service: Service) -> tuple[int, dict[str, Any]]:
    with service.client() as client:
        response = client.get("/readyz")
    return response.status_code, response.json()


def is_unreachable(service: Service, stores: list[str]) -> bool:
    """Whether these are the stores that /readyz names."""
    return bool(readiness(service)[1]["unreachable"] == stores)


def grpc_status(service: Service) -> int:
    with grpc.insecure_channel(service.rpc) as channel:
        check = HealthStub(channel).Check(HealthCheckRequest(), timeout=TIMEOUT)
    status: int = check.status
    return status


@pytest.mark.parametrize(("without", "percent"), [("true", 0), ("false", 100)])
def test_every_store_is_probed_and_named(without: str, percent: int, serve: Serve) -> None:
    with RedisServer() as old, RedisServer() as new, RedisServer() as hot, RedisServer() as rules:
        config = STORES.format(old=old.url, new=new.url, hot=hot.url, rules=rules.url, without=without, percent=percent)
        service = serve(config=config)
        status, body = readiness(service)
        assert (status, body["status"], body["unreachable"]) == (200, "ready", [])
        assert list(body["checks"]) == ["migrate.from", "migrate.to", "stores.hot", "rule_database", "rules"]
        expected = (200, SERVING) if without == "true" else (503, NOT_SERVING)
        servers = {"migrate.from": old, "migrate.to": new, "stores.hot": hot, "rule_database": rules}
        for name, server in servers.items():
            server.kill()
            wait_until(f"{name} is named", partial(is_unreachable, service, [name]), 30)
            status, body = readiness(service)
            assert (status, grpc_status(service)) == expected
            assert str(server.port) in body["checks"][name]
            assert {body["checks"][other] for other in servers if other != name} == {"ok"}
            server.start()
            wait_until(f"{name} is back", partial(is_unreachable, service, []), 30)
            assert readiness(service)[0] == 200
