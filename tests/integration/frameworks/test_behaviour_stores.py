"""One behaviour in all frameworks: many at once, counters in Redis, and a store that is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from crestgate import AsyncLimiter, Limiter
from crestgate.integrations.shared_limiters import sync_limiter_for
from flaky_store import Flaky
from integration.frameworks.suite import ROUTED, Running
from servers.machine import free_port
from servers.process import GivenServer
from servers.redis import RedisServer

Serve = Callable[..., Running]

SEVEN = "7/hour using fixed_window"


@pytest.fixture
def on_redis(redis_server: RedisServer | GivenServer) -> Iterator[Limiter]:
    with Limiter(f"{redis_server.url}?prefix=t{uuid4().hex}&timeout_ms=2000") as limiter:
        yield limiter


def at_once(app: Running, path: str = "/plain", times: int = 20) -> list[int]:
    with ThreadPoolExecutor(times) as pool:
        return sorted(pool.map(lambda _: app.request(path).status, range(times)))


def test_concurrent_requests_are_admitted_exactly(serve: Serve) -> None:
    app = serve(middleware={"limits": SEVEN})
    assert at_once(app) == [200] * 7 + [429] * 13
    assert len(app.setup.handled) == 7


def test_counters_in_redis(serve: Serve, on_redis: Limiter) -> None:
    app = serve(on_redis, middleware={"limits": SEVEN, "when": lambda response: response.status == 200})
    assert app.statuses(2, "/nothing") == [404, 404]
    assert at_once(app) == [200] * 7 + [429] * 13
    assert app.left(SEVEN) == 0


@pytest.mark.parametrize("framework", ROUTED)
def test_counters_of_routes_in_redis(serve: Serve, on_redis: Limiter) -> None:
    app = serve(on_redis, limits=SEVEN)
    assert at_once(app, "/item/1") == [200] * 7 + [429] * 13


def test_async_limiter_works_in_every_framework(serve: Serve) -> None:
    app = serve(sync_limiter_for(AsyncLimiter("memory://")), middleware={"limits": SEVEN})
    assert at_once(app, times=10) == [200] * 7 + [429] * 3


def test_unavailable_store_allows_requests(serve: Serve) -> None:
    limiter = sync_limiter_for(f"redis://127.0.0.1:{free_port()}/0?timeout_ms=50")
    app = serve(limiter, middleware={"limits": "1/minute", "when": lambda response: response.status == 401})
    assert app.statuses(3) == [200] * 3
    assert app.limiter.store_failures >= 3


def test_store_outage_and_recovery(serve: Serve) -> None:
    store = Flaky()
    app = serve(Limiter(store), middleware={"limits": "2/minute"})
    assert app.statuses(1) == [200]
    store.broken = True
    assert app.statuses(3) == [200] * 3
    store.broken = False
    assert app.statuses(2) == [200, 429]


def test_unavailable_store_denies_with_closed_policy(serve: Serve) -> None:
    store = Flaky()
    app = serve(Limiter(store, on_store_error="closed"), middleware={"limits": "2/minute"})
    store.broken = True
    denied = app.request("/plain")
    assert (denied.status, denied.problem()["reason"]) == (429, "fail_closed")
    assert app.setup.handled == []
