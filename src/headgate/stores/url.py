"""Open a store by its URL: the only place that names every store."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from headgate.errors import ConfigError
from headgate.stores.clock import Clock
from headgate.stores.options import Options, masked
from headgate.stores.port import LocalStore
from headgate.stores.remote import RemoteStore

__all__ = ["is_store_scheme", "open_store"]

MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - only a file of this user's own is opened there
_EXAMPLES = (
    "memory://, shared://name, redis://host:6379/0, mysql://user:password@host/database, "
    "postgresql://user:password@host/database, sqlite:///file or headgate://host:8080"
)


def open_store(url: str | Sequence[str], clock: Clock | None = None) -> LocalStore | RemoteStore:
    """The store that a URL such as `memory://?max_keys=50000` names; a list of URLs is one store in several places.

    >>> open_store("memory://?max_keys=10").close()
    >>> open_store("memory://?max_key=10")
    Traceback (most recent call last):
    headgate.errors.ConfigError: store URL 'memory://?max_key=10': unknown option 'max_key'; there are max_keys, ...
    """
    if isinstance(url, list | tuple):
        return _sharded(url, clock)
    if not isinstance(url, str):
        raise ConfigError(
            f"a store is given as a URL, such as {_EXAMPLES}, or as a store object, not {type(url).__name__}"
        )
    scheme, colon, _ = url.partition("://")
    opener = _OPENERS.get(scheme.lower()) if colon else None
    if opener is None:
        close = get_close_matches(scheme.lower().partition("+")[0], _OPENERS, n=1) if colon else []
        hint = f"did you mean {close[0]}://? There are " if close else "write "
        raise ConfigError(f"unknown store URL {masked(url)!r}: {hint}{_EXAMPLES}")
    return opener(Options(url), clock)


def is_store_scheme(scheme: str) -> bool:
    """Whether a URL can begin so."""
    return scheme.lower() in _OPENERS


def _sharded(urls: Sequence[str], clock: Clock | None) -> RemoteStore:
    from headgate.stores.memory import MemoryStore
    from headgate.stores.sharded import ShardedStore

    stores: dict[str, LocalStore | RemoteStore] = {}
    try:
        for url in urls:
            if not isinstance(url, str):
                raise ConfigError(f"a list of stores is a list of URLs, and has one {type(url).__name__} in it")
            store = open_store(url, clock)
            address = Options(url).address()
            if isinstance(store, MemoryStore):  # they have no address, and each is a store of its own
                address = f"{address}#{len(stores)}"
            if address in stores:
                store.close()
                raise ConfigError(f"the store {address!r} is listed twice, and each needs a place of its own")
            stores[address] = store
        return ShardedStore(stores)
    except BaseException:
        for store in stores.values():
            store.close()
        raise


def _memory(options: Options, clock: Clock | None) -> LocalStore:
    from headgate.stores.memory import DEFAULT_MAX_KEYS, MemoryStore

    options.allow("max_keys")
    if options.host or options.path not in ("", "/"):
        raise options.error("a memory store has no name; write memory:// (shared://name has one)")
    # A memory store is nobody else's and never waits: the common options are checked and change nothing.
    options.prefix()
    options.timeout_ms(100)
    options.whole("pool_size", None, 10_000)
    return MemoryStore(options.whole("max_keys", DEFAULT_MAX_KEYS, 10**9) or DEFAULT_MAX_KEYS, clock)


def _shared(options: Options, clock: Clock | None) -> LocalStore:
    from headgate.stores.shared import SharedStore
    from headgate.stores.shared.store import DEFAULT_TIMEOUT_MS

    options.allow("max_keys")
    options.whole("pool_size", None, 10_000)
    if options.host:
        if options.path not in ("", "/") or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", options.host):
            raise options.error(
                "write shared://name (letters, digits, '.', '_', '-') or, with three slashes, shared:///path/to/file"
            )
        folder = MEMORY_FOLDER if os.path.isdir(MEMORY_FOLDER) else tempfile.gettempdir()
        path = os.path.join(folder, f"headgate-{os.getuid()}-{options.host}")
    elif len(options.path) > 1 and not options.path.endswith("/"):
        path = options.path
    else:
        raise options.error("name the file: shared:///path/to/file, or shared://name")
    return SharedStore(
        path,
        options.whole("max_keys", None, 10**8),
        options.timeout_ms(DEFAULT_TIMEOUT_MS),
        options.prefix(),
        clock,
        ours_alone=bool(options.host),
    )


def _redis(options: Options, clock: Clock | None) -> RemoteStore:
    try:
        from headgate.stores.redis.opening import open_redis
    except ModuleNotFoundError as error:
        raise options.missing(error) from None
    return open_redis(options, clock)


def _sql(options: Options, clock: Clock | None) -> RemoteStore:
    from headgate.stores.sql.opening import open_sql

    return open_sql(options, clock)


def _service(options: Options, clock: Clock | None) -> RemoteStore:
    from headgate.stores.service.opening import open_service_store

    return open_service_store(options, clock)


_OPENERS: dict[str, Callable[[Options, Clock | None], LocalStore | RemoteStore]] = {
    "memory": _memory,
    "shared": _shared,
    **{
        f"{name}{topology}": _redis
        for name in ("redis", "rediss", "valkey", "valkeys")
        for topology in ("", "+sentinel", "+cluster")
    },
    "redis+unix": _redis,
    "valkey+unix": _redis,
    **dict.fromkeys(("mysql", "mariadb", "postgresql", "postgres", "sqlite"), _sql),
    **dict.fromkeys(("headgate", "headgates"), _service),
}
