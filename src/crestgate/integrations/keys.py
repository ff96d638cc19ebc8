# mypyc: compile
"""Whom a request is counted for: key resolvers, by name, as callables, or several joined.

    ip              the client's address (an IPv6 address by its /64), which is what counts unless said
    user            the user's id; principal is another name of it
    apikey          the API key, by a digest: keys are written into stores, and an API key is a secret
    client          what the layer's `client=` says
    route           the route's template (`/item/1` and `/item/2` are one), else the path in its one spelling
    header:NAME     a header's value, without blanks around it (Host and the scheme of Authorization in any spelling);
                    whoever sends several different ones is counted with all who do
    user|route      several, each written `user:42|route:/item/{id}`
    a callable      given the request; what it returns is the key

A caller who lacks what is asked for (nobody is logged in) is counted by the address instead, so that nobody is free of
limits by leaving something out. What joins the parts is escaped in each (`|` as `%7C`, `%` as `%25`), also where there
is one, which a route may follow: or two callers could make one key.
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
from crestgate.limiter.decorator import is_coroutine
from crestgate.rules.address import subject_address
from crestgate.rules.matching.paths import normalise

__all__ = ["Key", "KeyMaker", "bounded_key", "build_key_maker", "is_coroutine", "peer_key", "with_one_argument"]

KeyResolver = Callable[[Request], str | None]
Key: TypeAlias = "str | Callable[..., Any] | Iterable[str | Callable[..., Any]]"
"""What `key=` takes: a resolver's name, a callable, or several of them."""

_log = logging.getLogger("crestgate")
_NAMES = ("ip", "user", "apikey", "client", "route")
_OTHER_NAMES = {"address": "ip", "principal": "user", "api_key": "apikey"}
_said: set[str] = set()


class KeyMaker:
    """Makes the key of a request."""

    __slots__ = ("_parts", "by_address", "callables")

    def __init__(self, parts: Sequence[KeyResolver], callables: Sequence[Callable[..., Any]]) -> None:
        self._parts = parts
        self.by_address = list(parts) == [_by_address]
        """Whether the address is all there is to it."""
        self.callables = callables
        """Those of the application, among the parts."""

    def __call__(self, request: Request) -> str:
        if self.by_address:
            return _by_address(request)
        made = "|".join([_escaped(part(request) or _by_address(request)) for part in self._parts])
        return bounded_key(made)


def build_key_maker(key: Key) -> KeyMaker:
    """What makes the keys. A resolver that does not exist is a ConfigError now."""
    if isinstance(key, str):
        key = key.split("|")
    elif callable(key):
        key = [key]
    if not isinstance(key, Iterable):
        raise ConfigError(f"key must be {_shown()}, a callable or a list of them, not {key!r}")
    named = [one if isinstance(one, str) else with_one_argument(_callable(one)) for one in key]
    if not named:
        raise ConfigError("key names nobody: leave it out for the client's address")
    parts = [_named_part(one) if isinstance(one, str) else _called(one) for one in named]
    return KeyMaker(parts, [one for one in named if not isinstance(one, str)])


def bounded_key(key: str) -> str:
    """A key that a store takes: one that is too long by a digest."""
    if len(key) <= MAX_KEY_BYTES // 4 or len(key.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES:
        return key
    return _digest(key)


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace("|", "%7C") if "%" in part or "|" in part else part


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def with_one_argument(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """A callable of the application's as one that takes the request, also when it takes nothing (in frameworks whose
    request is everywhere)."""
    try:
        inspect.signature(function).bind()
    except ValueError:  # it does not tell its parameters
        return function
    except TypeError:
        return function
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        if is_coroutine(function):

            async def nothing_async(_: Any) -> Any:
                return await function()

            return nothing_async
        return lambda _: function()
    return function


def _callable(given: Any) -> Callable[..., Any]:
    if not callable(given):
        raise ConfigError(f"key must be made of {_shown()} and callables, not {given!r}")
    function: Callable[..., Any] = given
    return function


def _named_part(name: str) -> KeyResolver:
    name = name.strip()
    kind, colon, rest = name.partition(":")
    if kind.lower() == "header" and colon:
        if not rest.strip():
            raise ConfigError("key 'header:' names no header: write one such as header:X-Tenant")
        return _header(rest.strip())
    known = name.lower().replace("-", "_")
    resolver = _RESOLVERS.get(_OTHER_NAMES.get(known, known))
    if resolver is None:
        raise ConfigError(f"there is no key {name!r}: write {_shown()}, several joined by '|', or give a callable")
    return resolver


def _shown() -> str:
    return f"one of {', '.join(_NAMES)}, header:NAME"


def _called(function: Callable[[Any], Any]) -> KeyResolver:
    def called(request: Request) -> str | None:
        made = request.call(function)
        if made is None:
            return None
        if not isinstance(made, str | int):
            raise TypeError(f"key {function!r} must return text such as 'user:42', or None, not {made!r}")
        return trimmed(str(made))

    return called


def _header(name: str) -> KeyResolver:
    label = f"header:{name.lower()}:"

    def header(request: Request) -> str | None:
        value = request.headers.identity_in(name)
        return None if value is None else label + value

    return header


def _by_address(request: Request) -> str:
    address = request.address
    if address is None:
        if "address" not in _said:
            _said.add("address")
            _log.warning(
                "requests come without a client's address, and are counted together: name the proxies before this "
                "application with trusted_proxies= ('unix' for a Unix socket), or give another key="
            )
        return "ip:unknown"
    return _address_key(address)


@lru_cache(maxsize=4096)
def peer_key(peer: str) -> str:
    """The key of a client who is known by the address of its own connection."""
    return _address_key(peer_address(peer) or peer)


@lru_cache(maxsize=4096)
def _address_key(address: str) -> str:
    return bounded_key(_escaped("ip:" + subject_address(address)))


def _named(kind: str, value: str | None) -> str | None:
    return None if value is None else f"{kind}:{value}"


_RESOLVERS: dict[str, KeyResolver] = {
    "ip": _by_address,
    "user": lambda request: _named("user", request.user_id),
    "apikey": lambda request: _named("apikey", None if request.api_key is None else _digest(request.api_key)),
    "client": lambda request: _named("client", request.client_id),
    "route": lambda request: "route:" + (request.route or normalise(request.path)),
}
