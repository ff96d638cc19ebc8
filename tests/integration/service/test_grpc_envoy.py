"""ShouldRateLimit of real services with grpcio's client: exact with one worker, two workers on shared memory, Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest

from crestgate.protobuf import messages
from integration.service.service_process import GENEROUS, Service

TIMEOUT = 30.0
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
RESET = "/crestgate.v1.RateLimiter/ResetLimit"
DESCRIPTORS = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 50}
  - key: all
    rate_limit: {unit: year, requests_per_unit: 1000}
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 10}
"""
OK, OVER_LIMIT = 1, 2
CLIENTS = 8
EACH = 20


class Client:
    """A client with its own connection, so that several workers take part."""

    def __init__(self, service: Service) -> None:
        self.channel = grpc.insecure_channel(service.rpc, options=[("grpc.use_local_subchannel_pool", 1)])
        self.should_rate_limit = self.method(METHOD, messages.RateLimitRequest, messages.RateLimitResponse)

    def method(self, path: str, request_type: Any, response_type: Any) -> Any:
        return self.channel.unary_unary(path, request_type.SerializeToString, response_type.FromString)

    def codes(self, *descriptors: dict[str, Any]) -> list[int]:
        request = messages.RateLimitRequest(domain="edge", descriptors=descriptors)
        response = self.should_rate_limit(request, timeout=TIMEOUT)
        return [response.overall_code, *(status.code for status in response.statuses)]


def descriptor(key: str, value: str, **more: Any) -> dict[str, Any]:
    return {"entries": [{"key": key, "value": value}], **more}


@pytest.fixture(scope="module", params=["memory", "shared", "redis"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("envoy")
    (folder / "descriptors.yaml").write_text(DESCRIPTORS)
    config = "envoy: {config: descriptors.yaml, negative_hits: true}\n"
    arguments: tuple[str, ...] = ()
    if request.param == "memory":
        config += "store: memory://\n"
    elif request.param == "shared":
        arguments = ("--workers", "2")
    else:
        config += f"store: {request.getfixturevalue('redis_server').url}?prefix={uuid4().hex}\n"
    with Service(folder, config, GENEROUS, arguments) as started:
        yield started
        assert "Traceback" not in started.logged


def test_concurrent_clients_get_exactly_the_limit_and_denials_consume_nothing(service: Service) -> None:
    def call(_: int) -> list[list[int]]:
        client = Client(service)
        try:
            return [client.codes(descriptor("all", "x"), descriptor("user", "a")) for _ in range(EACH)]
        finally:
            client.channel.close()

    with ThreadPoolExecutor(CLIENTS) as threads:
        results = [codes for batch in threads.map(call, range(CLIENTS)) for codes in batch]
    assert Counter(map(tuple, results)) == {(OK, OK, OK): 50, (OVER_LIMIT, OK, OVER_LIMIT): CLIENTS * EACH - 50}
    client = Client(service)
    response = client.should_rate_limit(
        messages.RateLimitRequest(domain="edge", descriptors=[descriptor("all", "x", hits_addend={"value": 0})])
    )
    assert response.statuses[0].limit_remaining == 1000 - 50
    client.channel.close()


def test_peeks_and_negative_hits_work_on_every_store(service: Service) -> None:
    client = Client(service)
    peek = descriptor("tokens", "a", hits_addend={"value": 0})
    assert client.codes(peek, descriptor("user", "b")) == [OK, OK, OK]
    assert client.codes(descriptor("tokens", "a", hits_addend={"value": 10})) == [OK, OK]
    assert client.codes(descriptor("user", "b"), peek) == [OVER_LIMIT, OK, OVER_LIMIT]
    give_back = descriptor("tokens", "a", hits_addend={"value": 4}, is_negative_hits=True)
    assert client.codes(give_back) == [OK, OK]
    response = client.should_rate_limit(
        messages.RateLimitRequest(domain="edge", descriptors=[peek, descriptor("user", "b")])
    )
    assert [status.limit_remaining for status in response.statuses] == [4, 48], "the denied request consumed nothing"
    client.channel.close()


def test_reset_and_errors_use_grpc_statuses(service: Service) -> None:
    client = Client(service)
    assert client.codes(descriptor("tokens", "b", hits_addend={"value": 10})) == [OK, OK]
    assert client.codes(descriptor("tokens", "b")) == [OVER_LIMIT, OVER_LIMIT]
    reset = messages.ResetRequest(domain="edge", descriptors=[descriptor("tokens", "b")])
    call = client.method(RESET, messages.ResetRequest, messages.ResetResponse)
    assert call(reset, metadata=[("authorization", f"Bearer {service.key}")], timeout=TIMEOUT).reset_count == 1
    assert client.codes(descriptor("tokens", "b")) == [OK, OK]
    with pytest.raises(grpc.RpcError) as error:
        client.should_rate_limit(messages.RateLimitRequest(descriptors=[descriptor("user", "a")]), timeout=TIMEOUT)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.details().startswith("domain: ")
    client.channel.close()
