"""Open locks by a URL: the only module that names every kind of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crestgate.errors import ConfigError
from crestgate.locks.lock import Locks
from crestgate.locks.port import LockService
from crestgate.runtime.url_options import REDIS_SCHEMES, SQL_SCHEMES, Options, redact_url

__all__ = ["open_locks"]

TIMEOUT_MS = 5000
_EXAMPLES = "redis://host:6379/0, mysql://user:password@host/database, sqlite:///file or file:///folder"


def open_locks(url: str) -> LockService[Any]:
    """The locks that a URL names. Connects immediately, so that a wrong URL fails here.

    >>> open_locks("memory://")
    Traceback (most recent call last):
    crestgate.errors.ConfigError: unknown URL of locks 'memory://': write redis://host:6379/0, ...
    """
    if not isinstance(url, str):
        raise ConfigError(f"locks must be a URL, such as {_EXAMPLES}, not {type(url).__name__}")
    scheme, colon, _ = url.partition("://")
    opener = _OPENERS.get(scheme.lower()) if colon else None
    if opener is None:
        raise ConfigError(f"unknown URL of locks {redact_url(url)!r}: write {_EXAMPLES}")
    options = Options(url)
    return opener(options, options.timeout_ms(TIMEOUT_MS) / 1000)


def _redis(options: Options, timeout: float) -> Locks[Any]:
    try:
        from crestgate.databases.redis_client import open_client
        from crestgate.locks.redis import RedisLocks
    except ModuleNotFoundError as error:
        raise options.missing_package(error) from None
    client, address = open_client(options, timeout)
    return RedisLocks(client, address, prefix=options.prefix())


def _sql(options: Options, timeout: float) -> Locks[Any]:
    from crestgate.stores.sql.factory import open_driver
    from crestgate.stores.sql.version import prepare_database

    driver = open_driver(options)
    try:
        from crestgate.locks.sql import SqlLocks
    except ModuleNotFoundError as error:
        raise options.missing_package(error) from None
    prepare_database(driver, timeout)
    return SqlLocks(driver, prefix=options.prefix(), timeout=timeout, pool_size=options.pool_size())


def _file(options: Options, timeout: float) -> Locks[Any]:
    from crestgate.locks.file import FileLocks

    options.allow()
    options.pool_size()
    if options.host or len(options.path) < 2:
        raise options.error("name the folder, with three slashes: file:///path/to/folder")
    return FileLocks(options.path, prefix=options.prefix(), timeout=timeout)


_OPENERS: dict[str, Callable[[Options, float], Locks[Any]]] = {
    **dict.fromkeys(REDIS_SCHEMES, _redis),
    **dict.fromkeys(SQL_SCHEMES, _sql),
    "file": _file,
}
