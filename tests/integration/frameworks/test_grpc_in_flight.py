"""In-flight limits of the gRPC interceptor: a slot is held until the call has ended, whatever ends it.

Time stands still, so no slot is ever freed by its time to live.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import grpc
import pytest

from crestgate import Limiter
from crestgate.integrations.grpc import RateLimitInterceptor
from crestgate.testing import FakeClock
from integration.frameworks.rpc_servers import KINDS, STYLES, Client, Service, serve
from servers.machine import until

OK = grpc.StatusCode.OK
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
ME = "ip:127.0.0.1"
ONE = "1 concurrent"


@pytest.fixture
def limiter() -> Limiter:
    return Limiter("memory://", clock=FakeClock(1_700_000_000))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """gRPC logs what handlers raise, which is what some of these do on purpose."""
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("grpc").setLevel(logging.NOTSET)


def until_free(limiter: Limiter) -> None:
    until("the slot is free", lambda: limiter.peek(ME, ONE).remaining == 1)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", KINDS)
def test_slot_is_held_until_the_call_has_ended(style: str, kind: str, limiter: Limiter) -> None:
    service = Service()
    interceptor = RateLimitInterceptor(limiter, [ONE, "9/hour"])
    with serve(style, service, [interceptor]) as address, Client(address) as client:
        call = client.begin(kind, [b"wait"])
        assert service.entered.wait(20)
        denied = client.call("unary_unary", b"hello")
        assert (denied.code, limiter.peek(ME, "9/hour").remaining) == (EXHAUSTED, 8)
        service.released.set()
        if kind.endswith("stream"):
            assert set(call) == {b"wait"}
        else:
            assert call.result() == b"wait"
        until_free(limiter)
        assert client.call("unary_unary", b"hello").code is OK
        until_free(limiter)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("message", [b"boom", b"no", b"exceed", b"coded"])
def test_slot_is_free_after_errors(style: str, kind: str, message: bytes, limiter: Limiter) -> None:
    service = Service()
    service.released.set()
    with serve(style, service, [RateLimitInterceptor(limiter, ONE)]) as address, Client(address) as client:
        assert client.call(kind, message).code is not None
        until_free(limiter)


@pytest.mark.parametrize("style", ["threads", "loop", "writers"])  # gRPC tells plain functions on a loop nothing of it
def test_slot_is_free_when_the_client_cancels_a_stream(style: str, limiter: Limiter) -> None:
    service = Service()
    with serve(style, service, [RateLimitInterceptor(limiter, ONE)]) as address, Client(address) as client:
        call = client.begin("unary_stream", [b"hello"])
        assert next(call) == b"hello"
        assert limiter.peek(ME, ONE).remaining == 0
        call.cancel()
        until_free(limiter)
        service.released.set()


@pytest.mark.parametrize("style", ["loop", "writers"])
def test_slot_is_free_when_the_client_cancels_a_unary_call(style: str, limiter: Limiter) -> None:
    service = Service()
    with serve(style, service, [RateLimitInterceptor(limiter, ONE)]) as address, Client(address) as client:
        call = client.begin("unary_unary", [b"wait"])
        assert service.entered.wait(20)
        call.cancel()
        until_free(limiter)
        service.released.set()


@pytest.mark.parametrize("style", STYLES)
def test_slot_is_free_when_an_inner_interceptor_denies(style: str, limiter: Limiter) -> None:
    service = Service()
    interceptors = [RateLimitInterceptor(limiter, ONE), RateLimitInterceptor(limiter, "0/minute")]
    with serve(style, service, interceptors) as address, Client(address) as client:
        for kind in KINDS:
            assert client.call(kind, b"hello").code is EXHAUSTED
            until_free(limiter)
