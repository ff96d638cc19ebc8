"""Async storages of `limits` that Crestgate has no store for: their names exist, and say what to use instead."""

from __future__ import annotations

from typing import Any, Self

from crestgate.compat.limits.aio.storage.base import Storage
from crestgate.compat.limits.errors import ConfigurationError
from crestgate.compat.limits.store_url import unsupported

__all__ = ["MemcachedStorage", "MongoDBStorage"]


class MemcachedStorage(Storage):
    """ConfigurationError when it is built."""

    STORAGE_SCHEME = ["async+memcached"]  # noqa: RUF012 - as in limits

    def __new__(cls, uri: str = "memcached://", *_: Any, **__: Any) -> Self:
        raise ConfigurationError(unsupported(uri))


class MongoDBStorage(Storage):
    """ConfigurationError when it is built."""

    STORAGE_SCHEME = ["async+mongodb", "async+mongodb+srv"]  # noqa: RUF012 - as in limits

    def __new__(cls, uri: str = "mongodb://", *_: Any, **__: Any) -> Self:
        raise ConfigurationError(unsupported(uri))
