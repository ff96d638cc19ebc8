"""The storages of `crestgate.compat.limits` in memory: counters by key, errors, URLs, pickling."""

from __future__ import annotations

import asyncio
import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest

from crestgate.compat.limits import aio, from_limits
from crestgate.compat.limits.errors import ConcurrentUpdateError, ConfigurationError, StorageError
from crestgate.compat.limits.storage import (
    MemcachedStorage,
    MemoryStorage,
    MongoDBStorage,
    RedisClusterStorage,
    RedisSentinelStorage,
    RedisStorage,
    Storage,
    storage_from_string,
)
from crestgate.compat.limits.strategies import FixedWindowRateLimiter
from crestgate.compat.limits.util import parse
from crestgate.errors import ConfigError, CrestgateError, StoreClosedError, StoreError
from crestgate.testing import FakeClock

START = 1_700_000_040  # a full minute


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def storage(clock: FakeClock) -> MemoryStorage:
    return MemoryStorage(clock=clock)


def test_counter_is_incremented_without_a_limit(storage: MemoryStorage, clock: FakeClock) -> None:
    clock.advance(15)
    assert [storage.incr("key", 60), storage.incr("key", 60, amount=10), storage.get("key")] == [1, 11, 11]
    assert storage.get_expiry("key") == START + 60
    clock.advance(45)
    assert [storage.get("key"), storage.get_expiry("key")] == [0, START + 60]


def test_counter_is_that_of_the_strategy(storage: MemoryStorage) -> None:
    limiter, limit = FixedWindowRateLimiter(storage), parse("5/minute")
    storage.incr(limit.key_for("user"), 60, amount=4)
    assert [limiter.hit(limit, "user"), limiter.hit(limit, "user")] == [True, False]
    assert storage.get(limit.key_for("user")) == 5


def test_moving_window(storage: MemoryStorage, clock: FakeClock) -> None:
    assert storage.get_moving_window("key", 5, 60) == (START, 0)
    assert storage.acquire_entry("key", 5, 60)
    clock.advance(10)
    assert storage.acquire_entry("key", 5, 60, amount=3)
    assert not storage.acquire_entry("key", 5, 60, amount=2)
    assert storage.get_moving_window("key", 5, 60) == (START, 4)
    clock.advance(50)
    assert storage.get_moving_window("key", 5, 60) == (START + 10, 3)


@pytest.mark.parametrize(("before", "now"), [(0, 0), (0, 1), (1, 0), (3, 4), (40, 33), (500, 77), (77, 500)])
def test_sliding_window_is_read_exactly(storage: MemoryStorage, clock: FakeClock, before: int, now: int) -> None:
    """The counts follow from waits, and so do not depend on how a store keeps them."""
    assert storage.acquire_sliding_window_entry("key", 1000, 60, before)
    clock.advance(60 + 15)
    assert storage.acquire_sliding_window_entry("key", 1000, 60, now)
    counted = before if before * 0.75 >= 1 else 0  # less than one weighted request counts as none
    assert storage.get_sliding_window("key", 60) == (counted, 45.0 if counted else 0.0, now, 105.0)
    storage.clear_sliding_window("key", 60)
    assert storage.get_sliding_window("key", 60) == (0, 0.0, 0, 105.0)


def test_clear_and_reset(storage: MemoryStorage) -> None:
    for key in ("a", "b"):
        storage.incr(key, 60)
        storage.acquire_entry(key, 5, 60)
        storage.acquire_sliding_window_entry(key, 5, 60)
    storage.clear("a")
    assert [storage.get("a"), storage.get_moving_window("a", 5, 60)[1], storage.get_sliding_window("a", 60)[2]] == [
        0
    ] * 3
    assert [storage.get("b"), storage.get_moving_window("b", 5, 60)[1], storage.get_sliding_window("b", 60)[2]] == [
        1
    ] * 3
    assert storage.reset() == 3
    assert storage.get("b") == 0
    assert storage.incr("b", 60) == 1


def test_async_storage_has_the_same_methods(clock: FakeClock) -> None:
    async def use() -> None:
        storage = aio.storage.MemoryStorage(clock=clock)
        assert [await storage.incr("key", 60), await storage.incr("key", 60, 2), await storage.get("key")] == [1, 3, 3]
        assert await storage.get_expiry("key") == START + 60
        assert await storage.acquire_entry("key", 2, 60, amount=2)
        assert await storage.get_moving_window("key", 2, 60) == (START, 2)
        assert await storage.acquire_sliding_window_entry("key", 2, 60)
        assert await storage.get_sliding_window("key", 60) == (0, 0.0, 1, 120.0)
        await storage.clear_sliding_window("key", 60)
        assert await storage.check()
        assert await storage.reset() == 2
        await storage.clear("key")
        await storage.aclose()
        assert not await storage.check()

    asyncio.run(use())


def test_memory_is_bounded(clock: FakeClock) -> None:
    storage = storage_from_string("memory://?max_keys=10", clock=clock)
    for number in range(100):
        storage.incr(f"key{number}", 60)
    assert storage.reset() == 10


@pytest.mark.parametrize("kind", [MemoryStorage, aio.storage.MemoryStorage])
def test_memory_is_pickled_with_its_counters(kind: type[Any], clock: FakeClock) -> None:
    def run(result: Any) -> Any:
        async def wait() -> Any:
            return await result

        return asyncio.run(wait()) if kind is aio.storage.MemoryStorage else result

    storage = kind(clock=clock, wrap_exceptions=True)
    run(storage.incr("fixed", 60, 3))
    run(storage.acquire_entry("moving", 2, 60))
    clock.advance(1)
    run(storage.acquire_entry("moving", 2, 60))
    restored = pickle.loads(pickle.dumps(storage))
    assert restored.wrap_exceptions
    assert run(restored.incr("fixed", 60)) == 4
    assert run(restored.get_moving_window("moving", 2, 60)) == (START, 2)
    assert not run(restored.acquire_entry("moving", 2, 60))
    assert run(storage.get("fixed")) == 3


def test_errors_are_wrapped_when_asked_for() -> None:
    plain, wrapped = MemoryStorage(), MemoryStorage(wrap_exceptions=True)
    for storage in (plain, wrapped):
        storage.close()
        assert not storage.check()
    with pytest.raises(StoreClosedError):
        plain.incr("key", 60)
    with pytest.raises(StorageError, match="closed") as caught:
        wrapped.incr("key", 60)
    assert isinstance(caught.value.storage_error, StoreClosedError)
    with pytest.raises(StorageError):
        FixedWindowRateLimiter(wrapped).hit(parse("5/minute"), "user")
    with pytest.raises(StorageError):
        wrapped.get_sliding_window("key", 60)


def test_errors_of_async_strategies_are_wrapped_when_asked_for() -> None:
    async def use() -> None:
        storage = aio.storage.MemoryStorage(wrap_exceptions=True)
        await storage.aclose()
        with pytest.raises(StorageError):
            await aio.strategies.FixedWindowRateLimiter(storage).test(parse("5/minute"), "user")

    asyncio.run(use())


def test_redis_that_is_down_raises() -> None:
    storage = storage_from_string("redis://127.0.0.1:1", socket_timeout=0.5)
    assert not storage.check()
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1"):
        FixedWindowRateLimiter(storage).hit(parse("5/minute"), "user")
    storage.close()


def test_errors_are_also_those_of_crestgate() -> None:
    assert issubclass(ConfigurationError, ConfigError)
    assert issubclass(StorageError, CrestgateError)
    assert str(ConcurrentUpdateError("key", 3)) == "unable to update 'key' after 3 attempts"


def test_stores_that_limits_does_not_have(tmp_path: Path) -> None:
    url = f"shared://{tmp_path}/limits"
    first, second = storage_from_string(url), storage_from_string(url)
    limit = parse("2/year")
    limiters = [FixedWindowRateLimiter(first), FixedWindowRateLimiter(second)]
    assert [limiter.hit(limit, "user") for limiter in limiters * 2] == [True, True, False, False]
    with pytest.raises(NotImplementedError, match="clear the limits one by one"):
        first.reset()
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory://", MemoryStorage),
        ("redis://localhost:1", RedisStorage),
        ("rediss://localhost:1", RedisStorage),
        ("valkeys://localhost:1", RedisStorage),
        ("redis+unix:///run/redis.sock", RedisStorage),
        ("redis+cluster://localhost:1,localhost:2/", RedisClusterStorage),
        ("valkey+sentinel://localhost:1/mymaster", RedisSentinelStorage),
        ("async+memory://", aio.storage.MemoryStorage),
        ("async+valkey://localhost:1", aio.storage.RedisStorage),
        ("async+redis+cluster://localhost:1", aio.storage.RedisClusterStorage),
        ("async+redis+sentinel://localhost:1/mymaster", aio.storage.RedisSentinelStorage),
    ],
)
def test_storage_of_a_url(url: str, kind: type) -> None:
    assert type(storage_from_string(url)) is kind


@pytest.mark.parametrize(
    ("url", "options", "ours"),
    [
        ("redis://localhost:6379", {}, "redis://localhost:6379?prefix=LIMITS&timeout_ms=1000"),
        ("redis://h/3", {"db": 5, "use_replicas": True}, "redis://h/3?prefix=LIMITS&timeout_ms=1000"),
        ("redis://h", {"db": 5, "key_prefix": "a b"}, "redis://h/5?prefix=a+b&timeout_ms=1000"),
        ("redis://h?socket_timeout=2&max_connections=7", {}, "redis://h?prefix=LIMITS&timeout_ms=2000&pool_size=7"),
        ("redis://u:old@h", {"password": "p@ss"}, "redis://u:p%40ss@h?prefix=LIMITS&timeout_ms=1000"),
        (
            "redis://h",
            {"ssl": True, "ssl_cert_reqs": ssl.CERT_NONE},
            "rediss://h?prefix=LIMITS&timeout_ms=1000&ssl_cert_reqs=none",
        ),
        ("redis+unix:///s.sock", {"db": 2}, "redis+unix:///s.sock?prefix=LIMITS&timeout_ms=1000&db=2"),
        (
            "async+redis+cluster://h:1,h:2/",
            {"ssl": True, "implementation": "redispy"},
            "redis+cluster://h:1,h:2?prefix=LIMITS&timeout_ms=1000&tls=yes",
        ),
        ("redis+sentinel://h:1/m", {"db": 2}, "redis+sentinel://h:1/m/2?prefix=LIMITS&timeout_ms=1000"),
        (
            "redis+sentinel://:a@h:1/m",
            {},
            "redis+sentinel://:a@h:1/m?prefix=LIMITS&timeout_ms=1000&sentinel_password=a",
        ),
        (
            "redis+sentinel://:a@h:1/m",
            {"sentinel_kwargs": {"password": "b"}},
            "redis+sentinel://:a@h:1/m?prefix=LIMITS&timeout_ms=1000&sentinel_password=b",
        ),
        ("memory://", {"socket_timeout": 2}, "memory://"),
        ("shared://web", {"key_prefix": "x"}, "shared://web?prefix=x&timeout_ms=1000"),
        ("sqlite:///f.db", {}, "sqlite:///f.db?prefix=LIMITS&timeout_ms=1000"),
    ],
)
def test_store_url_of_a_storage_url(url: str, options: dict[str, Any], ours: str) -> None:
    assert from_limits(url, **options) == ours


class Node:
    host = "h"
    port = 7


def test_startup_nodes_of_a_cluster() -> None:
    assert from_limits("redis+cluster://", startup_nodes=[Node()]).startswith("redis+cluster://h:7?")


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("blah://", {}, "unknown storage URL 'blah://': use memory://"),
        ("redis+sentinel://localhost:26379", {}, "name the master"),
        ("redis://localhost", {"connection_pool": object()}, "max_connections"),
        ("redis://localhost", {"retry_on_timeout": True}, "unknown option 'retry_on_timeout'; there are db, "),
        ("memory://", {"colour": "red"}, "unknown option 'colour'"),
        ("redis://:secret@localhost", {"decode_responses": True}, r"redis://:\*\*\*@localhost"),
        ("memcached://localhost:11211", {}, "one atomic step, so it admits too many; use memory://"),
        ("async+memcached://localhost:11211", {}, "shared://name"),
        ("mongodb://localhost", {}, "no store in MongoDB; use memory://"),
        ("async+mongodb+srv://localhost", {}, "no store in MongoDB"),
    ],
)
def test_what_cannot_be_used_says_what_to_write(url: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        storage_from_string(url, **options)


@pytest.mark.parametrize(
    "kind", [MemcachedStorage, MongoDBStorage, aio.storage.MemcachedStorage, aio.storage.MongoDBStorage]
)
def test_unsupported_classes_exist_and_say_so(kind: type[Any]) -> None:
    with pytest.raises(ConfigurationError, match="is not supported"):
        kind()


def test_storage_of_ones_own_is_found_by_its_scheme() -> None:
    class Own(Storage):
        STORAGE_SCHEME = ["own"]  # noqa: RUF012 - as programs write it

        @property
        def base_exceptions(self) -> type[Exception]:
            return KeyError

        def incr(self, key: str, expiry: int, amount: int = 1) -> int:
            raise KeyError(key)

        def get(self, key: str) -> int:
            raise RuntimeError(key)

        get_expiry = check = reset = clear = None  # type: ignore[assignment]

    with pytest.raises(StorageError):
        storage_from_string("own://", wrap_exceptions=True).incr("key", 60)
    with pytest.raises(KeyError):
        storage_from_string("own://").incr("key", 60)
    with pytest.raises(RuntimeError):
        storage_from_string("own://", wrap_exceptions=True).get("key")
