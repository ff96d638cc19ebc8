"""Every method of a real service, called by clients of three kinds."""

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
    """Calls methods, and remembers which."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.made: set[tuple[str, str]] = set()

    def __call__(
        self, service: str, method: str, fields: dict[str, Any], metadata: Mapping[str, str] = {}
    ) -> dict[str, Any]:
        self.made.add((service, method))
        return self.client.call(service, method, fields, metadata)

    def first(self, service: str, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        self.made.add((service, method))
        return self.client.first(service, method, fields)


@pytest.mark.parametrize("kind", [Grpcio, Grpclib, Reflected])
def test_every_method_can_be_called(
    service: Service, reflected: Reflected, kind: type[Grpcio | Grpclib | Reflected]
) -> None:
    client = kind(service.rpc)
    calls = Calls(client)
    try:
        call_limiter(calls, kind.__name__, service.admin)
        call_envoy(calls, kind.__name__, service.admin)
        call_health(calls)
        call_reflection(calls)
    finally:
        client.close()
    assert calls.made == reflected.methods()


def call_limiter(calls: Calls, who: str, admin: Mapping[str, str]) -> None:
    asked = {"dimension": "USER", "identifier": who, "endpoint": "/orders"}
    decision = calls(LIMITER, "CheckRateLimit", asked)
    told = {name: decision[name] for name in ("allowed", "limit", "remaining", "current_count", "rule", "reason")}
    assert told == {
        "allowed": True,
        "limit": "3",  # how JSON of protobuf writes numbers of 64 bits
        "remaining": "2",
        "current_count": "1",
        "rule": "per-user",
        "reason": "ok",
    }
    decisions = calls(LIMITER, "CheckRateLimitBatch", {"checks": [asked, {**asked, "cost": 0}, asked, asked]})
    assert [(one["allowed"], one["remaining"]) for one in decisions["decisions"]] == [
        (True, "1"),
        (True, "1"),
        (True, "0"),
        (False, "0"),
    ]
    assert int(decisions["decisions"][-1]["retry_after"]) > 0
    quota = calls(LIMITER, "GetRemainingQuota", asked)
    assert (quota["allowed"], quota["remaining"], quota["state"]) == (False, "0", "throttled")
    gone = calls(LIMITER, "ResetLimit", asked, admin)
    assert gone == {"reset_count": "1", "reset": [{"key": f"user:{who}", "rule": "per-user"}]}
    assert calls(LIMITER, "GetRemainingQuota", asked)["remaining"] == "3"


def call_envoy(calls: Calls, who: str, admin: Mapping[str, str]) -> None:
    asked = {"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": who}]}]}
    codes = [calls(ENVOY, "ShouldRateLimit", asked)["overall_code"] for _ in range(3)]
    assert codes == ["OK", "OK", "OVER_LIMIT"]
    assert calls(LIMITER, "ResetLimit", asked, admin)["reset_count"] == "1"
    answer = calls(ENVOY, "ShouldRateLimit", asked)
    (status,) = answer["statuses"]
    assert (answer["overall_code"], status["code"], status["limit_remaining"]) == ("OK", "OK", 1)
    assert status["current_limit"] == {"requests_per_unit": 2, "unit": "HOUR", "name": ""}


def call_health(calls: Calls) -> None:
    assert calls(HEALTH, "Check", {})["status"] == "SERVING"
    assert calls(HEALTH, "Check", {"service": ENVOY})["status"] == "SERVING"
    statuses = calls(HEALTH, "List", {})["statuses"]
    assert {told["status"] for told in statuses.values()} == {"SERVING"}
    assert set(statuses) == {"", LIMITER, ENVOY, HEALTH, REFLECTION, REFLECTION_ALPHA}
    assert calls.first(HEALTH, "Watch", {"service": LIMITER})["status"] == "SERVING"
    assert calls.first(HEALTH, "Watch", {"service": "planet.Mars"})["status"] == "SERVICE_UNKNOWN"


def call_reflection(calls: Calls) -> None:
    for version in (REFLECTION, REFLECTION_ALPHA):
        answer = calls.first(version, "ServerReflectionInfo", {"list_services": "*"})
        listed = [service["name"] for service in answer["list_services_response"]["service"]]
        assert listed == sorted([LIMITER, ENVOY, HEALTH, REFLECTION, REFLECTION_ALPHA])
