"""Async storages. `crestgate.compat.limits.storage.storage_from_string` opens one by its URL, `async+redis://…`."""

from crestgate.compat.limits.aio.storage.base import MovingWindowSupport, SlidingWindowCounterSupport, Storage
from crestgate.compat.limits.aio.storage.memory import MemoryStorage
from crestgate.compat.limits.aio.storage.redis import RedisClusterStorage, RedisSentinelStorage, RedisStorage
from crestgate.compat.limits.aio.storage.store import StoreStorage
from crestgate.compat.limits.aio.storage.unsupported import MemcachedStorage, MongoDBStorage

__all__ = [
    "MemcachedStorage",
    "MemoryStorage",
    "MongoDBStorage",
    "MovingWindowSupport",
    "RedisClusterStorage",
    "RedisSentinelStorage",
    "RedisStorage",
    "SlidingWindowCounterSupport",
    "Storage",
    "StoreStorage",
]
