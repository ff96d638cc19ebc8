"""Every gRPC method of a real service, called by three kinds of clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from integration.service.rpc_clients import (
    ENVOY,
    HEALTH,
    LIMITER,
    REFLECTION,
    REFLECTION_ALPHA,
    Client,
    Grpcio,
    Grpclib,
    Reflected,
)
from integration.service.service_process import GENEROUS, Service

CONFIG = """
rules:
  - {rule_id: per-user, dimension: user, endpoint_pattern: /orders, limit: 3, window_seconds: 3600}
envoy: {config: descriptors.yaml}
"""
DESCRIPTORS = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("grpc")
    (folder / "descriptors.yaml").write_text(DESCRIPTORS)
    with Service(folder, CONFIG, GENEROUS) as started:
        yield started
        assert "Traceback" not in started.logged


@pytest.fixture(scope="module")
def reflected(service: Service) -> Iterator[Reflected]:
    client = Reflected(service.rpc)
    yield client
    client.close()


class Calls:
    """Calls methods and records which."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.called: set[tuple[str, str]] = set()

    def __call__(
        self, service: str, method: str, fields: dict[str, Any], metadata: Mapping[str, str] = {}
    ) -> dict[str, Any]:
        self.called.add((service, method))
        return self.client.call(service, method, fields, metadata)

    def first_response(self, service: str, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        self.called.add((service, method))
        return self.client.first_response(service, method, fields)


@pytest.mark.parametrize("kind", [Grpcio, Grpclib, Reflected])
def test_every_method_can_be_called(
    service: Service, reflected: Reflected, kind: type[Grpcio | Grpclib | Reflected]
) -> None:
    client = kind(service.rpc)
    calls = Calls(client)
    try:
        call_limiter(calls, kind.__name__, service.admin)
        call_reservations(calls, kind.__name__)
        call_envoy(calls, kind.__name__, service.admin)
        call_health(calls)
        call_reflection(calls)
    finally:
        client.close()
    assert calls.called == reflected.methods()


def call_limiter(calls: Calls, user: str, admin: Mapping[str, str]) -> None:
    request = {"dimension": "USER", "identifier": user, "endpoint": "/orders"}
    decision = calls(LIMITER, "CheckRateLimit", request)
    fields = {name: decision[name] for name in ("allowed", "limit", "remaining", "current_count", "rule", "reason")}
    assert fields == {
        "allowed": True,
        "limit": "3",  # protobuf JSON writes 64-bit numbers as strings
        "remaining": "2",
        "current_count": "1",
        "rule": "per-user",
        "reason": "ok",
    }
    decisions = calls(LIMITER, "CheckRateLimitBatch", {"checks": [request, {**request, "cost": 0}, request, request]})
    assert [(one["allowed"], one["remaining"]) for one in decisions["decisions"]] == [
        (True, "1"),
        (True, "1"),
        (True, "0"),
        (False, "0"),
    ]
    assert int(decisions["decisions"][-1]["retry_after"]) > 0
    quota = calls(LIMITER, "GetRemainingQuota", request)
    assert (quota["allowed"], quota["remaining"], quota["state"]) == (False, "0", "throttled")
    reset = calls(LIMITER, "ResetLimit", request, admin)
    assert reset == {"reset_count": "1", "reset": [{"key": f"user:{user}", "rule": "per-user"}]}
    assert calls(LIMITER, "GetRemainingQuota", request)["remaining"] == "3"


def call_reservations(calls: Calls, user: str) -> None:
    request = {"dimension": "USER", "identifier": f"{user} reserves", "endpoint": "/orders"}
    reserved = calls(LIMITER, "Reserve", {**request, "costs": {"per-user": 3}, "ttl": 60})
    assert (reserved["decision"]["allowed"], reserved["decision"]["remaining"]) == (True, "0")
    extended = calls(LIMITER, "Extend", {"id": reserved["id"], "ttl": 120})
    assert extended["extended"] is True
    assert extended["expires_at"] > reserved["expires_at"]
    assert calls(LIMITER, "Settle", {"id": reserved["id"], "actual": 1}) == {"settled": True, "late": False}
    assert calls(LIMITER, "GetRemainingQuota", request)["remaining"] == "2"
    other = calls(LIMITER, "Reserve", request)
    assert calls(LIMITER, "Release", {"id": other["id"]}) == {"settled": True, "late": False}
    assert calls(LIMITER, "GetRemainingQuota", request)["remaining"] == "2"


def call_envoy(calls: Calls, user: str, admin: Mapping[str, str]) -> None:
    request = {"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": user}]}]}
    codes = [calls(ENVOY, "ShouldRateLimit", request)["overall_code"] for _ in range(3)]
    assert codes == ["OK", "OK", "OVER_LIMIT"]
    assert calls(LIMITER, "ResetLimit", request, admin)["reset_count"] == "1"
    response = calls(ENVOY, "ShouldRateLimit", request)
    (status,) = response["statuses"]
    assert (response["overall_code"], status["code"], status["limit_remaining"]) == ("OK", "OK", 1)
    assert status["current_limit"] == {"requests_per_unit": 2, "unit": "HOUR", "name": ""}


def call_health(calls: Calls) -> None:
    assert calls(HEALTH, "Check", {})["status"] == "SERVING"
    assert calls(HEALTH, "Check", {"service": ENVOY})["status"] == "SERVING"
    statuses = calls(HEALTH, "List", {})["statuses"]
    assert {entry["status"] for entry in statuses.values()} == {"SERVING"}
    assert set(statuses) == {"", LIMITER, ENVOY, HEALTH, REFLECTION, REFLECTION_ALPHA}
    assert calls.first_response(HEALTH, "Watch", {"service": LIMITER})["status"] == "SERVING"
    assert calls.first_response(HEALTH, "Watch", {"service": "planet.Mars"})["status"] == "SERVICE_UNKNOWN"


def call_reflection(calls: Calls) -> None:
    for version in (REFLECTION, REFLECTION_ALPHA):
        response = calls.first_response(version, "ServerReflectionInfo", {"list_services": "*"})
        listed = [service["name"] for service in response["list_services_response"]["service"]]
        assert listed == sorted([LIMITER, ENVOY, HEALTH, REFLECTION, REFLECTION_ALPHA])
