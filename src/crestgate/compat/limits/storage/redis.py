"""Storages in Redis and Valkey: one server, a cluster, or a master under Sentinels.

The options are those of `limits`, translated by store_url.py. They are not passed to redis-py: checks have connections
of their own.
"""

from __future__ import annotations

from crestgate.compat.limits.storage.store import StoreStorage
from crestgate.compat.limits.store_url import KEY_PREFIX, redis_schemes

__all__ = ["RedisClusterStorage", "RedisSentinelStorage", "RedisStorage"]


class RedisStorage(StoreStorage):
    """Counters in one Redis or Valkey."""

    STORAGE_SCHEME = redis_schemes("", "unix")
    PREFIX = KEY_PREFIX


class RedisClusterStorage(RedisStorage):
    """Counters in a cluster."""

    STORAGE_SCHEME = redis_schemes("cluster")


class RedisSentinelStorage(RedisStorage):
    """Counters on the master that Sentinels name."""

    STORAGE_SCHEME = redis_schemes("sentinel")
