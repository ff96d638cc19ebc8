"""Open a store by its URL: the only place that names every store."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from urllib.parse import parse_qsl, unquote, urlsplit

from headgate.errors import ConfigError
from headgate.stores.clock import Clock
from headgate.stores.port import DEFAULT_PREFIX, LocalStore

__all__ = ["open_store"]

MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - only a file of this user's own is opened there
_COMMON = ("prefix", "timeout_ms", "pool_size")
_EXAMPLES = "memory://, shared://name or shared:///path/to/file"


def open_store(url: str, clock: Clock | None = None) -> LocalStore:
    """The store that a URL such as `memory://?max_keys=50000` names.

    >>> open_store("memory://?max_keys=10").close()
    >>> open_store("memory://?max_key=10")
    Traceback (most recent call last):
    headgate.errors.ConfigError: store URL 'memory://?max_key=10': unknown option 'max_key'; there are max_keys, ...
    """
    if not isinstance(url, str):
        raise ConfigError(f"a store is given as a URL, such as {_EXAMPLES}, or as a store object, not {url!r}")
    scheme, colon, _ = url.partition("://")
    opener = _OPENERS.get(scheme.lower()) if colon else None
    if opener is None:
        raise ConfigError(f"unknown store URL {url!r}: write {_EXAMPLES}")
    return opener(_Options(url), clock)


class _Options:
    """A store URL taken apart: each option is asked for, and what nobody knows is an error."""

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        self.host = unquote(parts.netloc)
        self.path = unquote(parts.path)
        if parts.fragment or "\0" in self.path:
            raise self.error("a path may not hold a NUL, and a '#' in it is written %23")
        self.values: dict[str, str] = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in self.values:
                raise self.error(f"option {name!r} is given twice")
            self.values[name] = value

    def allow(self, *names: str) -> None:
        known = names + _COMMON
        for name in self.values:
            if name not in known:
                raise self.error(f"unknown option {name!r}; there are {', '.join(known)}")

    def whole(self, name: str, default: int | None, most: int) -> int | None:
        text = self.values.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]{1,15}", text) or not 1 <= int(text) <= most:
            raise self.error(f"{name} must be a whole number from 1 to {most:,}, not {text!r}")
        return int(text)

    def prefix(self) -> str:
        prefix = self.values.get("prefix", DEFAULT_PREFIX)
        if not prefix:
            raise self.error("prefix must not be empty; leave it out for the usual one")
        return prefix

    def timeout_ms(self, default: int) -> int:
        return self.whole("timeout_ms", default, 600_000) or default

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"store URL {self.url!r}: {problem}")


def _memory(options: _Options, clock: Clock | None) -> LocalStore:
    from headgate.stores.memory import DEFAULT_MAX_KEYS, MemoryStore

    options.allow("max_keys")
    if options.host or options.path not in ("", "/"):
        raise options.error("a memory store has no name; write memory:// (shared://name has one)")
    # A memory store is nobody else's and never waits: the common options are checked and change nothing.
    options.prefix()
    options.timeout_ms(100)
    options.whole("pool_size", None, 10_000)
    return MemoryStore(options.whole("max_keys", DEFAULT_MAX_KEYS, 10**9) or DEFAULT_MAX_KEYS, clock)


def _shared(options: _Options, clock: Clock | None) -> LocalStore:
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


_OPENERS: dict[str, Callable[[_Options, Clock | None], LocalStore]] = {"memory": _memory, "shared": _shared}
