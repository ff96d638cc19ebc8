"""Whom the gRPC interceptor counts calls for, by which limiter, and what it refuses when it is made."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from crestgate import AsyncLimiter, ConfigError, Limiter
from crestgate.integrations.grpc import RateLimitInterceptor
from crestgate.integrations.request import Request
from crestgate.stores.port import BatchCallback
from crestgate.stores.port import Request as StoreRequest
from crestgate.testing import FakeClock
from flaky_store import Flaky
from integration.frameworks.rpc_servers import KINDS, STYLES, Client, Service, serve
from servers.redis import self_signed
from slow_store import SlowStore

OK = grpc.StatusCode.OK
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


@pytest.fixture
def limiter(clock: FakeClock) -> Limiter:
    return Limiter("memory://", clock=clock)


@pytest.fixture
def service() -> Service:
    made = Service()
    made.released.set()
    return made


@pytest.mark.parametrize("style", ["loop", "writers"])
def test_coroutine_callables_are_awaited(style: str, limiter: Limiter, service: Service) -> None:
    async def by_tenant(request: Request) -> str:
        return f"tenant:{request.headers['x-tenant']}"

    async def shaped(request: Request, decision: Any) -> Any:
        return grpc.StatusCode.UNAVAILABLE, str(decision.limit)

    layers = [RateLimitInterceptor(limiter, "1/minute", key=by_tenant, on_denied=shaped)]
    with serve(style, service, layers) as address, Client(address) as client:
        answers = [client.call("unary_unary", b"x", metadata=[("x-tenant", name)]) for name in ("a", "b", "a")]
    assert [answer.code for answer in answers] == [OK, OK, grpc.StatusCode.UNAVAILABLE]


@pytest.mark.parametrize("style", STYLES)
def test_only_trusted_proxies_identify_callers(style: str, limiter: Limiter, service: Service) -> None:
    def forwarded(*addresses: str) -> list[tuple[str, str]]:
        return [("x-forwarded-for", address) for address in addresses]

    trusting = RateLimitInterceptor(limiter, "1/minute", trusted_proxies=["127.0.0.0/8"])
    with serve(style, service, [trusting]) as address, Client(address) as client:
        asked = [forwarded("192.0.2.1"), forwarded("192.0.2.2"), forwarded("9.9.9.9", "192.0.2.1")]
        assert [client.call("unary_unary", b"x", metadata=one).code for one in asked] == [OK, OK, EXHAUSTED]
        by_rfc = [("forwarded", 'for="[2001:db8::1]:4711"')]
        assert client.call("unary_unary", b"x", metadata=by_rfc).code is OK
    assert limiter.peek("ip:2001:db8::/64", "1/minute").remaining == 0
    with serve(style, service, [RateLimitInterceptor(limiter, "1/minute")]) as address, Client(address) as client:
        assert [client.call("unary_unary", b"x", metadata=one).code for one in asked] == [OK, EXHAUSTED, EXHAUSTED]


@pytest.mark.parametrize("style", ["threads", "loop"])
def test_ipv6_and_unix_socket_peers(style: str, limiter: Limiter, service: Service, tmp_path: Path) -> None:
    interceptor = RateLimitInterceptor(limiter, "1/minute", trusted_proxies=["unix"])
    with serve(style, service, [interceptor], address="[::1]:0") as address, Client(address) as client:
        assert client.call("unary_unary", b"x").code is OK
    assert limiter.peek("ip:::/64", "1/minute").remaining == 0
    with serve(style, service, [interceptor], address=f"unix:{tmp_path}/socket") as address, Client(address) as client:
        assert client.call("unary_unary", b"x", metadata=[("x-forwarded-for", "192.0.2.7")]).code is OK
    assert limiter.peek("ip:192.0.2.7", "1/minute").remaining == 0


@pytest.mark.parametrize("style", STYLES)
def test_certificate_identifies_user(style: str, limiter: Limiter, service: Service, tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    pem, key = certificate.read_bytes(), certificate.with_suffix(".key").read_bytes()
    ours = grpc.ssl_server_credentials([(key, pem)], root_certificates=pem, require_client_auth=True)
    theirs = grpc.ssl_channel_credentials(root_certificates=pem, private_key=key, certificate_chain=pem)
    interceptor = RateLimitInterceptor(limiter, "2/minute", key="user")
    with serve(style, service, [interceptor], credentials=ours) as address, Client(address, theirs) as client:
        assert client.call("unary_unary", b"x").remaining == 1
    assert limiter.peek("user:localhost", "2/minute").remaining == 1


@pytest.mark.parametrize("style", STYLES)
def test_rules_match_method_path(style: str, clock: FakeClock, service: Service, tmp_path: Path) -> None:
    rules = """
        store: memory://
        rules:
          - name: echoes
            dimension: user
            endpoint_pattern: /test.Echo/*
            method: POST
            limit: 2
            window_seconds: 60
          - name: streams
            dimension: ip
            endpoint_pattern: /test.Echo/unary_stream
            limit: 1
            window_seconds: 60
    """
    (tmp_path / "crestgate.yaml").write_text(rules)
    with Limiter.from_config(tmp_path / "crestgate.yaml", environ={}, clock=clock) as limiter:
        interceptor = RateLimitInterceptor(limiter, user=lambda request: request.headers.get("x-user"))
        with serve(style, service, [interceptor]) as address, Client(address) as client:
            bob = [client.call("unary_unary", b"x", metadata=[("x-user", "bob")]).code for _ in range(3)]
            assert bob == [OK, OK, EXHAUSTED]
            assert [client.call("unary_stream", b"x").code for _ in range(2)] == [OK, EXHAUSTED]
            assert client.call("unary_unary", b"x").code is OK


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("policy", ["open", "closed"])
def test_store_error_does_not_fail_the_handler(style: str, policy: Any, service: Service) -> None:
    store = Flaky()
    store.broken = True
    interceptor = RateLimitInterceptor(Limiter(store, on_store_error=policy), "1/minute", when=lambda response: False)
    with serve(style, service, [interceptor]) as address, Client(address) as client:
        codes = [client.call(kind, b"x").code for kind in KINDS]
    assert codes == [OK if policy == "open" else EXHAUSTED] * 4


@pytest.mark.parametrize("style", STYLES)
def test_interceptor_can_be_created_on_or_off_the_loop(style: str, clock: FakeClock, service: Service) -> None:
    limiter = AsyncLimiter("memory://", clock=clock)
    with serve(style, service, lambda: [RateLimitInterceptor(limiter, "1/minute")]) as address:
        with Client(address) as client:
            assert [client.call("unary_unary", b"x").code for _ in range(2)] == [OK, EXHAUSTED]


@pytest.mark.parametrize("style", STYLES)
def test_connecting_does_not_block_the_event_loop(style: str, service: Service) -> None:
    store = Connecting()
    loops: list[int] = []

    def made() -> list[Any]:
        loops.append(threading.get_ident())
        return [RateLimitInterceptor(AsyncLimiter(store), "1/minute")]

    with serve(style, service, made) as address, Client(address) as client:
        assert client.call("unary_unary", b"x").code is OK
    assert store.connected == 1
    assert style == "threads" or not set(store.by_threads) & set(loops)


class Connecting(SlowStore):
    """Remembers which threads have waited for a connection."""

    def __init__(self) -> None:
        super().__init__(timeout=10.0)
        self.by_threads: list[int] = []
        self.gate.release(100)

    def connect(self) -> None:
        self.by_threads.append(threading.get_ident())
        super().connect()

    def begin(self, batch: Sequence[StoreRequest], deadline: float, done: BatchCallback) -> None:
        done(self.decide(batch))


def test_iterator_options_are_read_once(limiter: Limiter, service: Service) -> None:
    options: Any = {"exempt": iter(["/test.Echo/unary_stream"]), "trusted_proxies": iter(["127.0.0.1"])}
    interceptor = RateLimitInterceptor(limiter, iter(["1/minute", "1/hour"]), **options)
    with serve("threads", service, [interceptor]) as address, Client(address) as client:
        assert client.call("unary_stream", b"x").trailing.get("ratelimit") is None
        metadata = [("x-forwarded-for", "192.0.2.9")]
        assert [client.call("unary_unary", b"x", metadata=metadata).code for _ in range(2)] == [OK, EXHAUSTED]
    assert limiter.peek("ip:192.0.2.9", "1/hour").remaining == 0


@pytest.mark.parametrize(
    ("limits", "options", "message"),
    [
        ("100/fortnight", {}, "unknown unit"),
        (None, {}, "a layer needs limits"),
        ({}, {}, "names no method"),
        ({"Echo": "1/s"}, {}, "not 'Echo'"),
        ({"/test.Echo": "1/s"}, {}, "such as '/package.Service/Method'"),
        ({"/test.Echo/*": "1/fortnight"}, {}, "unknown unit"),
        ("1/s", {"methods": ["POST"]}, "every call is a POST"),
    ],
)
def test_invalid_options_are_errors_at_creation(limits: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RateLimitInterceptor("memory://", limits, **options)
