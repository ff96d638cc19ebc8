"""The other libraries on their asynchronous Redis stores, each called in the fastest way that it offers.

redis-py gets a connection for each of a hundred callers, which was faster than fewer; more callers wait in line for
them. limits is measured on both of its clients, redis-py and coredis. pyrate-limiter is called as `try_acquire`, whose
answer can be awaited: its `try_acquire_async` lets one caller in at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.network.entry import Contender, Entry

__all__ = ["limits", "limits_on_coredis", "pyrate", "throttled"]

CONNECTIONS = 100
_THROTTLED_NAMES = {"leaky_bucket": "leaking_bucket", "sliding_window_counter": "sliding_window"}


async def limits(entry: Entry) -> Contender:
    return _limits(entry, _storage(entry, "redispy", connection_pool=_pool(entry)))


async def limits_on_coredis(entry: Entry) -> Contender:
    storage = _storage(entry, "coredis")
    await storage.bridge.storage.__aenter__()  # since coredis 6 a client has to be entered, which limits leaves to us
    return _limits(entry, storage)


def _storage(entry: Entry, client: str, **more: Any) -> Any:
    from limits.storage import storage_from_string

    return storage_from_string(f"async+{entry.store}", implementation=client, key_prefix=entry.space, **more)


def _limits(entry: Entry, storage: Any) -> Contender:
    from limits import parse
    from limits.aio import strategies

    kinds: dict[str, Any] = {
        "fixed_window": strategies.FixedWindowRateLimiter,
        "sliding_window_counter": strategies.SlidingWindowCounterRateLimiter,
        "sliding_window_log": strategies.MovingWindowRateLimiter,
    }
    hit = kinds[entry.algorithm](storage).hit
    return Contender(partial(hit, parse(f"{entry.amount}/day")), bool)


async def throttled(entry: Entry) -> Contender:
    from throttled.asyncio import Throttled, rate_limiter, store

    kind, size = _pool_of(entry)
    pool = {"CONNECTION_POOL_CLASS": f"redis.asyncio.{kind}", "CONNECTION_POOL_KWARGS": size}
    using: Any = _THROTTLED_NAMES.get(entry.algorithm, entry.algorithm)
    limiter = Throttled(
        using=using,
        quota=rate_limiter.per_day(entry.amount, burst=entry.amount),
        store=store.RedisStore(server=entry.store, options=pool),
        key_prefix=entry.space,
    )
    return Contender(limiter.limit, lambda result: not result.limited)


async def pyrate(entry: Entry) -> Contender:
    import pyrate_limiter as library
    from pyrate_limiter.buckets.redis_bucket import LuaScript
    from redis.asyncio import Redis

    client = Redis.from_pool(_pool(entry))
    script = await client.script_load(LuaScript.PUT_ITEM)
    rates = [library.Rate(entry.amount, library.Duration.DAY)]

    def bucket(key: str) -> Any:
        name = f"{entry.space}:{key}"
        if entry.algorithm == "sliding_window_log":
            return library.RedisBucket(rates, client, name, script)
        return library.StateBucket(rates, library.GCRA(), library.RedisStateStore(client, name))

    library.BucketFactory.register(_BucketPerKey)
    factory: Any = _BucketPerKey(bucket, library.RateItem)
    return Contender(partial(library.Limiter(factory).try_acquire, blocking=False), bool)


def _pool(entry: Entry) -> Any:
    import redis.asyncio

    kind, size = _pool_of(entry)
    return getattr(redis.asyncio, kind).from_url(entry.store, **size)


def _pool_of(entry: Entry) -> tuple[str, dict[str, int]]:
    """The kind of pool, and its size: one that lets callers wait is slower, and only needed where they are many."""
    if entry.callers <= CONNECTIONS:
        return "ConnectionPool", {"max_connections": CONNECTIONS}
    return "BlockingConnectionPool", {"max_connections": CONNECTIONS, "timeout": 60}


class _BucketPerKey:
    """pyrate-limiter counts per bucket; limits per key need a factory, which it leaves to its users to write."""

    _leaker = None

    def __init__(self, new_bucket: Callable[[str], Any], item: Callable[..., Any]) -> None:
        self.new_bucket = new_bucket
        self.item = item
        self.buckets: dict[str, Any] = {}

    def wrap_item(self, name: str, weight: int = 1) -> Any:
        return self.item(name, time.time_ns() // 1_000_000, weight)

    def get(self, item: Any) -> Any:
        bucket = self.buckets.get(item.name)
        if bucket is None:
            bucket = self.buckets[item.name] = self.new_bucket(item.name)
        return bucket
