"""Open locks by a URL: the only place that names every kind of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.errors import ConfigError
from headgate.locks.holding import Locks
from headgate.locks.port import LockService
from headgate.stores.options import Options, masked

__all__ = ["open_locks"]

TIMEOUT_MS = 5000
_EXAMPLES = "redis://host:6379/0, mysql://user:password@host/database, sqlite:///file or file:///folder"


def open_locks(url: str) -> LockService[Any]:
    """The locks that a URL names. The other side is asked at once, so that a wrong URL shows now.

    >>> open_locks("memory://")
    Traceback (most recent call last):
    headgate.errors.ConfigError: unknown URL of locks 'memory://': write redis://host:6379/0, ...
    """
    if not isinstance(url, str):
        raise ConfigError(f"locks are given as a URL, such as {_EXAMPLES}, not {type(url).__name__}")
    scheme, colon, _ = url.partition("://")
    opener = _OPENERS.get(scheme.lower()) if colon else None
    if opener is None:
        raise ConfigError(f"unknown URL of locks {masked(url)!r}: write {_EXAMPLES}")
    options = Options(url)
    return opener(options, options.timeout_ms(TIMEOUT_MS) / 1000)


def _redis(options: Options, timeout: float) -> Locks[Any]:
    try:
        from headgate.locks.by_redis import RedisLocks
        from headgate.locks.redis_client import open_client
    except ModuleNotFoundError as error:
        raise options.missing(error) from None
    client, address = open_client(options, timeout)
    return RedisLocks(client, address, prefix=options.prefix())


def _sql(options: Options, timeout: float) -> Locks[Any]:
    from headgate.stores.sql.opening import open_driver
    from headgate.stores.sql.version import prepare_database

    driver = open_driver(options)
    try:
        from headgate.locks.by_row import RowLocks
    except ModuleNotFoundError as error:
        raise options.missing(error) from None
    prepare_database(driver, timeout)
    return RowLocks(driver, prefix=options.prefix(), timeout=timeout, pool_size=options.pool_size())


def _file(options: Options, timeout: float) -> Locks[Any]:
    from headgate.locks.by_file import FileLocks

    options.allow()
    options.pool_size()
    if options.host or len(options.path) < 2:
        raise options.error("name the folder, with three slashes: file:///path/to/folder")
    return FileLocks(options.path, prefix=options.prefix(), timeout=timeout)


_OPENERS: dict[str, Callable[[Options, float], Locks[Any]]] = {
    **{
        f"{name}{topology}": _redis
        for name in ("redis", "rediss", "valkey", "valkeys")
        for topology in ("", "+sentinel", "+cluster")
    },
    "redis+unix": _redis,
    "valkey+unix": _redis,
    **dict.fromkeys(("mysql", "mariadb", "postgresql", "postgres", "sqlite"), _sql),
    "file": _file,
}
