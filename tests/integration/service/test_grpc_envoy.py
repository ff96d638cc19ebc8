"""ShouldRateLimit of real services, by grpcio's own client: exact in one worker, in two that share memory, on Redis."""

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

PATIENCE = 30.0
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
CALLERS = 8
EACH = 20


class Caller:
    """A connection of its own: with several workers, perhaps to another one."""

    def __init__(self, service: Service) -> None:
        self.channel = grpc.insecure_channel(service.rpc, options=[("grpc.use_local_subchannel_pool", 1)])
        self.ask = self.method(METHOD, messages.RateLimitRequest, messages.RateLimitResponse)

    def method(self, path: str, asked: Any, answered: Any) -> Any:
        return self.channel.unary_unary(path, asked.SerializeToString, answered.FromString)

    def codes(self, *descriptors: dict[str, Any]) -> list[int]:
        request = messages.RateLimitRequest(domain="edge", descriptors=descriptors)
        answer = self.ask(request, timeout=PATIENCE)
        return [answer.overall_code, *(status.code for status in answer.statuses)]


def one(key: str, value: str, **more: Any) -> dict[str, Any]:
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


def test_as_many_pass_as_there_are_whoever_asks_and_the_others_lose_nothing(service: Service) -> None:
    def call(_: int) -> list[list[int]]:
        caller = Caller(service)
        try:
            return [caller.codes(one("all", "x"), one("user", "a")) for _ in range(EACH)]
        finally:
            caller.channel.close()

    with ThreadPoolExecutor(CALLERS) as threads:
        told = [codes for answers in threads.map(call, range(CALLERS)) for codes in answers]
    assert Counter(map(tuple, told)) == {(OK, OK, OK): 50, (OVER_LIMIT, OK, OVER_LIMIT): CALLERS * EACH - 50}
    caller = Caller(service)
    answer = caller.ask(
        messages.RateLimitRequest(domain="edge", descriptors=[one("all", "x", hits_addend={"value": 0})])
    )
    assert answer.statuses[0].limit_remaining == 1000 - 50
    caller.channel.close()


def test_looks_and_what_is_given_back_hold_in_every_store(service: Service) -> None:
    caller = Caller(service)
    look = one("tokens", "a", hits_addend={"value": 0})
    assert caller.codes(look, one("user", "b")) == [OK, OK, OK]
    assert caller.codes(one("tokens", "a", hits_addend={"value": 10})) == [OK, OK]
    assert caller.codes(one("user", "b"), look) == [OVER_LIMIT, OK, OVER_LIMIT]
    back = one("tokens", "a", hits_addend={"value": 4}, is_negative_hits=True)
    assert caller.codes(back) == [OK, OK]
    answer = caller.ask(messages.RateLimitRequest(domain="edge", descriptors=[look, one("user", "b")]))
    assert [status.limit_remaining for status in answer.statuses] == [4, 48], "of the one that was denied nothing went"
    caller.channel.close()


def test_a_reset_and_a_mistake_are_told_as_grpc_does(service: Service) -> None:
    caller = Caller(service)
    assert caller.codes(one("tokens", "b", hits_addend={"value": 10})) == [OK, OK]
    assert caller.codes(one("tokens", "b")) == [OVER_LIMIT, OVER_LIMIT]
    reset = messages.ResetRequest(domain="edge", descriptors=[one("tokens", "b")])
    call = caller.method(RESET, messages.ResetRequest, messages.ResetResponse)
    assert call(reset, metadata=[("authorization", f"Bearer {service.key}")], timeout=PATIENCE).reset_count == 1
    assert caller.codes(one("tokens", "b")) == [OK, OK]
    with pytest.raises(grpc.RpcError) as refused:
        caller.ask(messages.RateLimitRequest(descriptors=[one("user", "a")]), timeout=PATIENCE)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details().startswith("domain: ")
    caller.channel.close()
