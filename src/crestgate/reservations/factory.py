"""Opens the book of a store by the store's URL: the only module that names every kind of book."""

from __future__ import annotations

import os
from urllib.parse import quote

from crestgate.core.bounds import DEFAULT_PREFIX
from crestgate.errors import ConfigError, StoreError
from crestgate.reservations.memory import MemoryBook
from crestgate.reservations.port import ReservationBook
from crestgate.runtime.url_options import REDIS_SCHEMES, SQL_SCHEMES, Options
from crestgate.stores.factory import shared_path

__all__ = ["may_have_book", "open_book"]

TIMEOUT_MS = 1000
SERVICE_SCHEMES = ("crestgate", "crestgates")
SUFFIX = ".reservations"
"""Of the SQLite file beside a shared store's."""


def open_book(url: str | None, path: str | None = None) -> ReservationBook:
    """The book of a store: `url` is the store's, None if it was given as an object; then `path` is the mapped file of
    a shared store. Reservations of a memory store, and of an object of another kind, are in this process."""
    if url is None:
        return MemoryBook() if path is None else _shared(path, DEFAULT_PREFIX)
    options = Options(url)
    if options.scheme == "shared":
        return _shared(shared_path(options), options.prefix())
    if options.scheme in REDIS_SCHEMES:
        return _redis(options)
    if options.scheme in SERVICE_SCHEMES:
        raise ConfigError("reservations of several services: reserve with ttl needs a single crestgate:// URL")
    return _sql(options) if options.scheme in SQL_SCHEMES else MemoryBook()


def may_have_book(url: str) -> bool:
    """Whether there may be reservations of a store that other processes have made."""
    options = Options(url)
    if options.scheme == "shared":
        return os.path.exists(f"{shared_path(options)}{SUFFIX}")
    return options.scheme in REDIS_SCHEMES or options.scheme in SQL_SCHEMES


def _redis(options: Options) -> ReservationBook:
    try:
        from crestgate.databases.redis_client import open_client
        from crestgate.reservations.redis import RedisBook
    except ModuleNotFoundError as error:
        raise options.missing_package(error) from None
    client, address = open_client(options, options.timeout_ms(TIMEOUT_MS) / 1000)
    return RedisBook(client, address, prefix=options.prefix())


def _sql(options: Options) -> ReservationBook:
    from crestgate.stores.sql.factory import open_driver
    from crestgate.stores.sql.version import prepare_database

    driver = open_driver(options)
    try:
        from crestgate.reservations.sql import SqlBook
    except ModuleNotFoundError as error:
        raise options.missing_package(error) from None
    timeout = options.timeout_ms(TIMEOUT_MS) / 1000
    prepare_database(driver, max(timeout, 5.0))
    return SqlBook(driver, prefix=options.prefix(), timeout=timeout, pool_size=options.pool_size())


def _shared(path: str, prefix: str) -> ReservationBook:
    """A SQLite file beside the mapped one. It must belong to this user: others may write to the folder."""
    file = f"{path}{SUFFIX}"
    try:
        if os.lstat(file).st_uid != os.lstat(path).st_uid:
            raise StoreError(f"{file} does not belong to the owner of {path}: remove it")
    except FileNotFoundError:
        pass
    return _sql(Options(f"sqlite:///{quote(os.path.abspath(file))}?prefix={quote(prefix, safe='')}"))
