"""Opens stores by URL: the only module that names every store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from crestgate.errors import ConfigError
from crestgate.runtime.clock import Clock
from crestgate.runtime.file_locks import NEEDS_LINUX, has_shared_memory
from crestgate.runtime.url_options import REDIS_SCHEMES, SQL_SCHEMES, Options, redact_url
from crestgate.stores.port import LocalStore
from crestgate.stores.remote_store import RemoteStore
from crestgate.stores.spec import Migration, NamedStores, StoreSpec

__all__ = ["is_store_scheme", "open_store", "shared_path"]

MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - only a file of this user's own is opened there
_EXAMPLES = (
    "memory://, shared://name, redis://host:6379/0, mysql://user:password@host/database, "
    "postgresql://user:password@host/database, sqlite:///file or crestgate://host:8080"
)


def open_store(url: StoreSpec, clock: Clock | None = None) -> LocalStore | RemoteStore:
    """The store of a URL such as `memory://?max_keys=50000`; a list of URLs is one sharded store, and a `Migration` is
    one of both of its stores.

    >>> open_store("memory://?max_keys=10").close()
    >>> open_store("memory://?max_key=10")
    Traceback (most recent call last):
    crestgate.errors.ConfigError: store URL 'memory://?max_key=10': unknown option 'max_key'; there are max_keys, ...
    """
    if isinstance(url, list | tuple):
        return _sharded(url, clock)
    if isinstance(url, Migration):
        return _migrating(url, clock)
    if isinstance(url, NamedStores):
        return _named(url, clock)
    if not isinstance(url, str):
        raise ConfigError(
            f"a store is given as a URL, such as {_EXAMPLES}, or as a store object, not {type(url).__name__}"
        )
    scheme, colon, _ = url.partition("://")
    opener = _OPENERS.get(scheme.lower()) if colon else None
    if opener is None:
        close = get_close_matches(scheme.lower().partition("+")[0], _OPENERS, n=1) if colon else []
        hint = f"did you mean {close[0]}://? There are " if close else "write "
        raise ConfigError(f"unknown store URL {redact_url(url)!r}: {hint}{_EXAMPLES}")
    return opener(Options(url), clock)


def is_store_scheme(scheme: str) -> bool:
    """Whether a store URL may have this scheme."""
    return scheme.lower() in _OPENERS


def _sharded(urls: Sequence[str], clock: Clock | None) -> RemoteStore:
    from crestgate.stores.memory import MemoryStore
    from crestgate.stores.sharded import ShardedStore

    stores: dict[str, LocalStore | RemoteStore] = {}
    try:
        for url in urls:
            if not isinstance(url, str):
                raise ConfigError(f"a list of stores is a list of URLs, and has one {type(url).__name__} in it")
            store = open_store(url, clock)
            address = Options(url).address()
            if isinstance(store, MemoryStore):  # they have no address, and each is a separate store
                address = f"{address}#{len(stores)}"
            if address in stores:
                store.close()
                raise ConfigError(f"the store {address!r} is listed twice, and each may be listed once")
            stores[address] = store
        return ShardedStore(stores)
    except BaseException:
        for store in stores.values():
            store.close()
        raise


def _migrating(migration: Migration, clock: Clock | None) -> RemoteStore:
    from crestgate.stores.migrating.store import MigratingStore

    source = open_store(migration.source, clock)
    try:
        return MigratingStore(source, open_store(migration.to, clock), migration.share)
    except BaseException:
        source.close()
        raise


def _named(stores: NamedStores, clock: Clock | None) -> RemoteStore:
    from crestgate.stores.named import NamedStoreGroup

    default = open_store(stores.default, clock)
    opened: dict[str, LocalStore | RemoteStore] = {}
    try:
        for name, urls in stores.named.items():
            opened[name] = open_store(urls, clock)
        return NamedStoreGroup(default, opened)
    except BaseException:
        for store in (default, *opened.values()):
            store.close()
        raise


def _memory(options: Options, clock: Clock | None) -> LocalStore:
    from crestgate.stores.memory import DEFAULT_MAX_KEYS, MemoryStore

    options.allow("max_keys")
    if options.host or options.path not in ("", "/"):
        raise options.error("a memory store has no name; write memory:// (shared://name has one)")
    # A memory store is private and never waits: the common options are validated and have no effect.
    options.prefix()
    options.timeout_ms(100)
    options.integer("pool_size", None, 10_000)
    return MemoryStore(options.integer("max_keys", DEFAULT_MAX_KEYS, 10**9) or DEFAULT_MAX_KEYS, clock)


def _shared(options: Options, clock: Clock | None) -> LocalStore:
    from crestgate.stores.shared import SharedStore
    from crestgate.stores.shared.store import DEFAULT_TIMEOUT_MS

    if not has_shared_memory():
        raise ConfigError(NEEDS_LINUX)
    options.allow("max_keys")
    options.integer("pool_size", None, 10_000)
    return SharedStore(
        shared_path(options),
        options.integer("max_keys", None, 10**8),
        options.timeout_ms(DEFAULT_TIMEOUT_MS),
        options.prefix(),
        clock,
        require_owner=bool(options.host),
    )


def shared_path(options: Options) -> str:
    """The file of a `shared://` URL."""
    if options.host:
        if options.path not in ("", "/") or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", options.host):
            raise options.error(
                "write shared://name (letters, digits, '.', '_', '-') or, with three slashes, shared:///path/to/file"
            )
        folder = MEMORY_FOLDER if os.path.isdir(MEMORY_FOLDER) else _temporary_folder()
        return os.path.join(folder, f"crestgate-{os.getuid()}-{options.host}")
    if len(options.path) > 1 and not options.path.endswith("/"):
        return options.path
    raise options.error("name the file: shared:///path/to/file, or shared://name")


def _temporary_folder() -> str:
    from tempfile import gettempdir  # seldom needed, and as slow to import as all of this package

    return gettempdir()


def _redis(options: Options, clock: Clock | None) -> RemoteStore:
    try:
        from crestgate.stores.redis.factory import open_redis
    except ModuleNotFoundError as error:
        raise options.missing_package(error) from None
    return open_redis(options, clock)


def _sql(options: Options, clock: Clock | None) -> RemoteStore:
    from crestgate.stores.sql.factory import open_sql

    return open_sql(options, clock)


def _service(options: Options, clock: Clock | None) -> RemoteStore:
    from crestgate.stores.remote.factory import open_service_store

    return open_service_store(options, clock)


_OPENERS: dict[str, Callable[[Options, Clock | None], LocalStore | RemoteStore]] = {
    "memory": _memory,
    "shared": _shared,
    **dict.fromkeys(REDIS_SCHEMES, _redis),
    **dict.fromkeys(SQL_SCHEMES, _sql),
    **dict.fromkeys(("crestgate", "crestgates"), _service),
}
