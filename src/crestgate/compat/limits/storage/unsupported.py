"""Storages of `limits` that Crestgate has no store for: their names exist, and say what to use instead."""

from __future__ import annotations

from typing import Any, Self

from crestgate.compat.limits.errors import ConfigurationError
from crestgate.compat.limits.storage.base import Storage
from crestgate.compat.limits.store_url import unsupported

__all__ = ["MemcachedStorage", "MongoDBStorage", "MongoDBStorageBase"]


class MemcachedStorage(Storage):
    """ConfigurationError when it is built."""

    STORAGE_SCHEME = ["memcached"]  # noqa: RUF012 - as in limits

    def __new__(cls, uri: str = "memcached://", *_: Any, **__: Any) -> Self:
        raise ConfigurationError(unsupported(uri))


class MongoDBStorageBase(Storage):
    """ConfigurationError when it is built."""

    def __new__(cls, uri: str = "mongodb://", *_: Any, **__: Any) -> Self:
        raise ConfigurationError(unsupported(uri))


class MongoDBStorage(MongoDBStorageBase):
    """ConfigurationError when it is built."""

    STORAGE_SCHEME = ["mongodb", "mongodb+srv"]  # noqa: RUF012 - as in limits
