"""`crestgate.compat.limits` on real servers: one Redis, Sentinels and a cluster, sync and async."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from crestgate import Limiter
from crestgate.compat.limits import aio, parse
from crestgate.compat.limits.errors import StorageError
from crestgate.compat.limits.storage import storage_from_string
from crestgate.compat.limits.strategies import STRATEGIES
from crestgate.errors import StoreError
from servers.process import GivenServer
from servers.redis import RedisCluster, RedisSentinels, RedisServer

NAMES = ["fixed-window", "moving-window", "sliding-window-counter"]
PATIENT = {"socket_timeout": 10}  # a busy machine is not what is tested


@pytest.fixture(params=["redis", "sentinel", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    fixture = {"redis": "redis_server", "sentinel": "redis_sentinels", "cluster": "redis_cluster"}[request.param]
    server: RedisServer | RedisSentinels | RedisCluster | GivenServer = request.getfixturevalue(fixture)
    return server.url


@pytest.fixture
def storage(url: str) -> Iterator[Any]:
    opened = storage_from_string(url, key_prefix=uuid4().hex, **PATIENT)
    yield opened
    opened.close()


@pytest.mark.parametrize("name", NAMES)
def test_strategy_on_a_server(storage: Any, name: str) -> None:
    limiter, limit = STRATEGIES[name](storage), parse("5/year")
    assert limiter.hit(limit, "user", cost=3)
    assert [limiter.test(limit, "user", cost=2), limiter.test(limit, "user", cost=3)] == [True, False]
    assert not limiter.hit(limit, "user", cost=3)  # and costs nothing
    assert limiter.hit(limit, "user", cost=2)
    reset_time, remaining = limiter.get_window_stats(limit, "user")
    assert remaining == 0
    assert time.time() < reset_time <= time.time() + limit.get_expiry() + 60
    limiter.clear(limit, "user")
    assert limiter.get_window_stats(limit, "user").remaining == 5


@pytest.mark.parametrize("name", NAMES)
def test_async_strategy_on_a_server(url: str, name: str) -> None:
    async def use() -> None:
        storage = storage_from_string(f"async+{url}", key_prefix=uuid4().hex, **PATIENT)
        limiter, limit = aio.strategies.STRATEGIES[name](storage), parse("5/year")
        assert sum(await asyncio.gather(*[limiter.hit(limit, "user") for _ in range(40)])) == 5
        assert not await limiter.test(limit, "user")
        assert (await limiter.get_window_stats(limit, "user")).remaining == 0
        await limiter.clear(limit, "user")
        assert (await limiter.get_window_stats(limit, "user")).remaining == 5
        assert await storage.check()
        await storage.incr("key", 10**6)
        assert await storage.reset() == 1
        await storage.aclose()

    asyncio.run(use())


def test_counters_by_key_on_a_server(storage: Any) -> None:
    year = 360 * 24 * 3600
    assert [storage.incr("key", year), storage.incr("key", year, amount=10), storage.get("key")] == [1, 11, 11]
    assert time.time() < storage.get_expiry("key") <= time.time() + year + 60
    assert storage.acquire_entry("key", 5, year, amount=4)
    start, count = storage.get_moving_window("key", 5, year)
    assert abs(start - time.time()) < 60
    assert count == 4
    assert storage.acquire_sliding_window_entry("key", 100, year, amount=40)
    previous, _, current, ttl = storage.get_sliding_window("key", year)
    assert (previous, current) == (0, 40)
    assert year < ttl <= 2 * year
    storage.clear("key")
    assert storage.get("key") == 0


def test_reset_deletes_the_counters_of_the_storage_only(url: str, storage: Any) -> None:
    prefix = storage.handle.url.partition("prefix=")[2].partition("&")[0]
    with Limiter(f"{url}?prefix={prefix}&timeout_ms=10000") as limiter:
        limiter.check("user", "5/year using fixed_window")
        for number in range(30):
            storage.incr(f"key{number}", 10**6)
            storage.acquire_entry(f"key{number}", 5, 10**6)
        other = storage_from_string(url, key_prefix=f"{prefix}*", **PATIENT)
        other.incr("key", 10**6)
        assert storage.reset() == 60
        assert storage.get("key0") == 0
        assert limiter.peek("user", "5/year using fixed_window").remaining == 4
        assert other.get("key") == 1
        assert other.reset() == 1
        other.close()


def test_threads_share_one_limit(storage: Any) -> None:
    limiter, limit = STRATEGIES["moving-window"](storage), parse("20/year")
    admitted: list[bool] = []

    def hit() -> None:
        admitted.extend(limiter.hit(limit, "user") for _ in range(10))

    threads = [threading.Thread(target=hit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 20


def test_server_that_goes_away_raises_and_comes_back() -> None:
    limit = parse("5/year")
    with RedisServer() as server:
        plain = storage_from_string(server.url, **PATIENT)
        wrapped = storage_from_string(server.url, wrap_exceptions=True, **PATIENT)
        assert plain.check()
        server.kill()
        assert not plain.check()
        with pytest.raises(StoreError):
            STRATEGIES["fixed-window"](plain).hit(limit, "user")
        with pytest.raises(StorageError) as caught:
            STRATEGIES["fixed-window"](wrapped).hit(limit, "user")
        assert isinstance(caught.value.storage_error, StoreError)
        with pytest.raises(StorageError):
            wrapped.reset()
        server.start()
        deadline = time.monotonic() + 30
        while not plain.check():  # the breaker asks again after a while
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert STRATEGIES["fixed-window"](plain).hit(limit, "user")
        plain.close()
        wrapped.close()
