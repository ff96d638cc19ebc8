"""The limiter of a layer: passed as an object, as a store's URL, or as the path of a configuration with rules.

Layers with the same URL or file share one limiter. So they share their counters, also in memory, and a request that
passes several of them is counted once. A Limiter can serve event loops, and an AsyncLimiter threads: both use the same
store.

An application starts even if its store cannot be reached: the error is logged, and `on_store_error` applies until the
store is back.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TypeAlias

from crestgate.config.location import find_config
from crestgate.core.limit import Limit
from crestgate.errors import ConfigError, StoreError
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.limiter import Limiter
from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.runtime.url_options import redact_url

__all__ = ["GivenLimiter", "async_limiter_for", "connect", "sync_limiter_for"]

GivenLimiter: TypeAlias = "Limiter | AsyncLimiter | str | os.PathLike[str] | Sequence[str] | None"
"""A limiter, the URL of a store (or several URLs), the path of a configuration. None: the configuration that
CRESTGATE_CONFIG names, else crestgate.yaml in the working folder, else CRESTGATE_STORE, else memory."""

_log = logging.getLogger("crestgate")
_lock = fork_safe_lock()
_limiters: dict[object, AsyncLimiter] = {}


def async_limiter_for(given: GivenLimiter) -> AsyncLimiter:
    """The limiter for event loops. It does not connect yet."""
    if isinstance(given, AsyncLimiter):
        return given
    if isinstance(given, Limiter):
        return AsyncLimiter.sharing(given)
    if given is None:
        given = find_config(None, os.environ) or os.environ.get("CRESTGATE_STORE") or "memory://"
    if isinstance(given, str | os.PathLike):
        name: object = os.fspath(given)
    elif isinstance(given, list | tuple) and given:
        name = tuple(given)
    else:
        raise ConfigError(
            "limiter must be a Limiter or AsyncLimiter, a store's URL such as 'redis://localhost', or the path of a "
            f"configuration such as 'crestgate.yaml', not {_describe(given)}"
        )
    with _lock:
        limiter = _limiters.get(name)
        if limiter is None:
            limiter = _limiters[name] = _open(given)
        return limiter


def sync_limiter_for(given: GivenLimiter) -> Limiter:
    """The limiter for threads, connected if the store can be reached."""
    if isinstance(given, Limiter):
        return given
    shared = async_limiter_for(given)
    try:
        return Limiter.sharing(shared)
    except StoreError as error:
        _log_unreachable(error)
        return Limiter.sharing(shared, connect=False)


async def connect(limiter: AsyncLimiter) -> None:
    """Connect to the store before the first request. Failure is logged."""
    try:
        await limiter.connect()
    except StoreError as error:
        _log_unreachable(error)


def _log_unreachable(error: StoreError) -> None:
    _log.error("store unreachable, applying on_store_error until it is reachable: %s", error)


def _describe(given: object) -> str:
    """The value for an error message, or its type alone: it may contain URLs with passwords."""
    return repr(given) if isinstance(given, int | float) or not given else type(given).__name__


def _is_limit(text: str) -> bool:
    """Whether the first argument was meant as the limits."""
    try:
        Limit.parse_chain(text)
    except ConfigError:
        return False
    return True


def _open(given: str | os.PathLike[str] | Sequence[str]) -> AsyncLimiter:
    if isinstance(given, str | os.PathLike):
        text = os.fspath(given)
        if "://" not in text:
            if not os.path.isfile(text):
                hint = f"; a limit is given as limits={text!r}" if _is_limit(text) else ""
                raise ConfigError(
                    f"limiter {redact_url(text)!r} is not a store URL, such as 'redis://localhost', and no "
                    f"file either{hint}"
                )
            return AsyncLimiter.from_config(text)
        return AsyncLimiter(text)
    return AsyncLimiter(given)
