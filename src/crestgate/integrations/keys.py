# mypyc: compile
"""Keys of requests: which caller a request is counted for. Resolvers by name, callables, or several joined.

    ip              the client's address (an IPv6 address by its /64); the default
    user            the user's id; also called principal
    apikey          a digest of the API key: keys are written to stores, and an API key is a secret
    client          the result of the layer's `client=`
    route           the route's template (the same for `/item/1` and `/item/2`), else the normalised path
    header:NAME     a header's value without surrounding white space (Host and the scheme of Authorization normalised);
                    all requests with several different values share one key
    user|route      several, each written `user:42|route:/item/{id}`
    a callable      called with the request; its result is the key

If a part is missing (nobody is logged in), the address is used instead, so that a caller cannot avoid a limit by
leaving something out. `|` and `%` are escaped in each part (as `%7C` and `%25`), even in a single part, because a route
may be appended: otherwise two callers could produce the same key.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from crestgate.core.bounds import MAX_KEY_BYTES
from crestgate.errors import ConfigError
from crestgate.http.client_address import peer_address
from crestgate.http.field_values import trimmed
from crestgate.integrations.request import Request
from crestgate.limiter.decorator_arguments import is_coroutine
from crestgate.rules.address import subject_address
from crestgate.rules.matching.paths import normalise

__all__ = ["Key", "KeyMaker", "bounded_key", "build_key_maker", "is_coroutine", "peer_key", "with_one_argument"]

KeyResolver = Callable[[Request], str | None]
Key: TypeAlias = "str | Callable[..., Any] | Iterable[str | Callable[..., Any]]"
"""The type of `key=`: a resolver's name, a callable, or several of them."""

_log = logging.getLogger("crestgate")
_NAMES = ("ip", "user", "apikey", "client", "route")
_OTHER_NAMES = {"address": "ip", "principal": "user", "api_key": "apikey"}
_warned: set[str] = set()
"""The warnings that this process has logged."""


class KeyMaker:
    """Builds the key of a request."""

    __slots__ = ("_parts", "by_address", "callables")

    def __init__(self, parts: Sequence[KeyResolver], callables: Sequence[Callable[..., Any]]) -> None:
        self._parts = parts
        self.by_address = list(parts) == [_by_address]
        """Whether the key is the address alone."""
        self.callables = callables
        """The parts that are callables of the application."""

    def __call__(self, request: Request) -> str:
        if self.by_address:
            return _by_address(request)
        return bounded_key("|".join([_escaped(part(request) or _by_address(request)) for part in self._parts]))


def build_key_maker(key: Key) -> KeyMaker:
    """Build the key maker for `key=`. ConfigError if a resolver does not exist."""
    if isinstance(key, str):
        key = key.split("|")
    elif callable(key):
        key = [key]
    if not isinstance(key, Iterable):
        raise ConfigError(f"key must be {_key_names()}, a callable or a list of them, not {key!r}")
    parts = [part if isinstance(part, str) else with_one_argument(_callable(part)) for part in key]
    if not parts:
        raise ConfigError("key is empty: leave it out to count by the client's address")
    resolvers = [_resolver(part) if isinstance(part, str) else _callable_resolver(part) for part in parts]
    return KeyMaker(resolvers, [part for part in parts if not isinstance(part, str)])


def bounded_key(key: str) -> str:
    """The key, or its digest if it is too long for a store."""
    if len(key) <= MAX_KEY_BYTES // 4 or len(key.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES:
        return key
    return _digest(key)


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace("|", "%7C") if "%" in part or "|" in part else part


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def with_one_argument(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Adapt a callable of the application to take the request, if it takes no argument (in frameworks with a global
    request)."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):  # ValueError: it has no signature
        return function
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        if is_coroutine(function):

            async def call_async(_: Any) -> Any:
                return await function()

            return call_async
        return lambda _: function()
    return function


def _callable(given: Any) -> Callable[..., Any]:
    if not callable(given):
        raise ConfigError(f"key must be made of {_key_names()} and callables, not {given!r}")
    function: Callable[..., Any] = given
    return function


def _resolver(name: str) -> KeyResolver:
    name = name.strip()
    kind, colon, rest = name.partition(":")
    if kind.lower() == "header" and colon:
        if not rest.strip():
            raise ConfigError("key 'header:' names no header: write one such as header:X-Tenant")
        return _header_resolver(rest.strip())
    known = name.lower().replace("-", "_")
    resolver = _RESOLVERS.get(_OTHER_NAMES.get(known, known))
    if resolver is None:
        raise ConfigError(f"there is no key {name!r}: write {_key_names()}, several joined by '|', or give a callable")
    return resolver


def _key_names() -> str:
    return f"one of {', '.join(_NAMES)}, header:NAME"


def _callable_resolver(function: Callable[[Any], Any]) -> KeyResolver:
    def resolve(request: Request) -> str | None:
        key = request.call(function)
        if key is None:
            return None
        if not isinstance(key, str | int):
            raise TypeError(f"key {function!r} must return text such as 'user:42', or None, not {key!r}")
        return trimmed(str(key))

    return resolve


def _header_resolver(name: str) -> KeyResolver:
    label = f"header:{name.lower()}:"

    def resolve(request: Request) -> str | None:
        value = request.headers.identity_in(name)
        return None if value is None else label + value

    return resolve


def _by_address(request: Request) -> str:
    address = request.address
    if address is None:
        if "address" not in _warned:
            _warned.add("address")
            _log.warning(
                "requests have no client address and are counted together: name the proxies in front of this "
                "application with trusted_proxies= ('unix' for a Unix socket), or set another key="
            )
        return "ip:unknown"
    return _address_key(address)


@lru_cache(maxsize=4096)
def peer_key(peer: str) -> str:
    """The key of a client by the address of its connection."""
    return _address_key(peer_address(peer) or peer)


@lru_cache(maxsize=4096)
def _address_key(address: str) -> str:
    return bounded_key(_escaped("ip:" + subject_address(address)))


def _labelled(kind: str, value: str | None) -> str | None:
    return None if value is None else f"{kind}:{value}"


_RESOLVERS: dict[str, KeyResolver] = {
    "ip": _by_address,
    "user": lambda request: _labelled("user", request.user_id),
    "apikey": lambda request: _labelled("apikey", None if request.api_key is None else _digest(request.api_key)),
    "client": lambda request: _labelled("client", request.client_id),
    "route": lambda request: "route:" + (request.route or normalise(request.path)),
}
