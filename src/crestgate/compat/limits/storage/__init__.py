"""Storages: where the counters are. `storage_from_string` opens one by its URL."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlsplit

import crestgate.compat.limits.aio.storage  # noqa: F401 - registers the schemes of async storages
from crestgate.compat.limits._storage_scheme import SCHEMES
from crestgate.compat.limits.errors import ConfigurationError
from crestgate.compat.limits.storage.base import MovingWindowSupport, SlidingWindowCounterSupport, Storage
from crestgate.compat.limits.storage.memory import MemoryStorage
from crestgate.compat.limits.storage.redis import RedisClusterStorage, RedisSentinelStorage, RedisStorage
from crestgate.compat.limits.storage.store import StoreStorage
from crestgate.compat.limits.storage.unsupported import MemcachedStorage, MongoDBStorage, MongoDBStorageBase
from crestgate.compat.limits.store_url import from_limits

__all__ = [
    "MemcachedStorage",
    "MemoryStorage",
    "MongoDBStorage",
    "MongoDBStorageBase",
    "MovingWindowSupport",
    "RedisClusterStorage",
    "RedisSentinelStorage",
    "RedisStorage",
    "SlidingWindowCounterSupport",
    "Storage",
    "StoreStorage",
    "storage_from_string",
]


def storage_from_string(storage_string: str, **options: Any) -> Any:
    """The storage of a URL such as `memory://` or `redis://localhost:6379`; `async+redis://…` for an async one.

    ConfigurationError for a URL or an option that cannot be used.
    """
    scheme = urlsplit(storage_string).scheme
    storage = SCHEMES.get(scheme)
    if storage is None:
        from_limits(storage_string)  # raises, with what to write instead
        raise ConfigurationError(f"unknown storage scheme {scheme!r}")
    return cast(Any, storage(storage_string, **options))
