"""A request as limits see it, whatever framework it came through.

Key resolvers, exemptions, costs and hooks are plain callables that are given one of these. It has what limits ask for
under one name in every framework, and everything else of the framework's own request besides: `request.client.host`,
`request.user`, `request.META["…"]` are the framework's, as its users know them.

A framework's module says how to read its own request, by a subclass; nothing is read before somebody asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CoroutineType
from typing import Any
from urllib.parse import quote

from crestgate.http.client_address import TrustedProxies, peer_address
from crestgate.http.field_values import header_name_value, trimmed, trimmed_bytes

__all__ = ["Headers", "Identity", "Request", "Response", "encoded_path", "is_plain_path"]

RequestCallable = Callable[["Request"], Any]
is_plain_path = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]*)+").fullmatch
"""Whether a path is the same encoded."""
RawHeaders = Sequence[tuple[bytes, bytes]]
_SEVERAL = "several"
"""The value of a header that has more than one, where one is wanted."""
_UNREAD = "unread"
"""An address that nobody has asked for yet, by identity: none is this very text."""


def encoded_path(raw: bytes) -> str:
    """A path that a server has decoded once, as a URL has it: a `?` or `%` that was in it is read as what it is."""
    return quote(raw, safe="/~!$&'()*+,;=:@")


class Headers(Mapping[str, str]):
    """The headers of a request or a response by name, in any case; several of one name are joined by commas."""

    __slots__ = ("_raw",)

    def __init__(self, raw: RawHeaders) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> str:
        values = self._values(name)
        if not values:
            raise KeyError(name)
        return b", ".join(map(trimmed_bytes, values)).decode("latin-1")

    def identity_in(self, name: str) -> str | None:
        """Whom a header names; None when it names nobody.

        Applications go by the first of several values, or by the last: whoever sends a true one and one that is new
        each time would be somebody new each time. All who send several are counted as one.
        """
        wanted = name.lower().encode("latin-1", "replace")
        values = {header_name_value(wanted, value) for value in self._values(name)} - {None}
        if len(values) > 1:
            return _SEVERAL
        return values.pop() if values else None

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key.decode("latin-1").lower() for key, _ in self._raw))

    def __len__(self) -> int:
        return len({key.lower() for key, _ in self._raw})

    def _values(self, name: str) -> list[bytes]:
        wanted = name.lower().encode("latin-1", "replace")
        return [value for key, value in self._raw if key.lower() == wanted]


class Identity:
    """How a layer finds out who asks: by the address, and by what the application knows."""

    __slots__ = ("api_key_header", "client", "proxies", "tier", "user")

    def __init__(
        self,
        proxies: TrustedProxies,
        user: RequestCallable | None = None,
        tier: RequestCallable | None = None,
        client: RequestCallable | None = None,
        api_key_header: str = "X-API-Key",
    ) -> None:
        self.proxies = proxies
        self.user = user
        self.tier = tier
        self.client = client
        self.api_key_header = api_key_header


class Request:
    """What a framework's request is to limits. `native` is that request itself (ASGI: the scope)."""

    __slots__ = ("_address", "identity", "native", "results")

    def __init__(self, native: Any, identity: Identity) -> None:
        self.native = native
        self.identity = identity
        self._address: str | None = _UNREAD
        self.results: dict[RequestCallable, Any] = {}
        """What coroutines among the callables have answered already: see `LimitLayer.resolve_coroutines`."""

    # What each framework tells.

    @property
    def method(self) -> str:
        raise NotImplementedError

    @property
    def path(self) -> str:
        """The whole path, as it came, with what a sub-application is mounted under."""
        raise NotImplementedError

    @property
    def raw_headers(self) -> RawHeaders:
        """The headers in their order, with names in small letters."""
        raise NotImplementedError

    @property
    def peer(self) -> str | None:
        """The address of whoever opened the connection; None when it has none (a Unix socket)."""
        raise NotImplementedError

    @property
    def route(self) -> str | None:
        """The template of the route that the request is for, such as `/item/{id}`; None when it is for none, or the
        framework does not tell."""
        return None

    @property
    def principal(self) -> str | None:
        """Who the framework's own authentication says this is."""
        return None

    # The same everywhere.

    @property
    def headers(self) -> Headers:
        return Headers(self.raw_headers)

    @property
    def address(self) -> str | None:
        """The client's address, seen through trusted proxies."""
        if self._address is _UNREAD:
            proxies = self.identity.proxies
            self._address = proxies.address(self.peer, self.raw_headers) if proxies.any else peer_address(self.peer)
        return self._address

    @property
    def user_id(self) -> str | None:
        """The user's id: what the layer's `user=` says, else the framework's principal."""
        function = self.identity.user
        return self.principal if function is None else _text(self.call(function))

    @property
    def tier(self) -> str | None:
        function = self.identity.tier
        return None if function is None else _text(self.call(function))

    @property
    def client_id(self) -> str | None:
        function = self.identity.client
        return None if function is None else _text(self.call(function))

    @property
    def api_key(self) -> str | None:
        """The API key, as its header has it."""
        return self.headers.identity_in(self.identity.api_key_header)

    def call(self, function: RequestCallable) -> Any:
        """What a callable of the application says of this request."""
        results = self.results
        if function in results:
            return results[function]
        answer = function(self)
        if isinstance(answer, CoroutineType):  # which is true, and has a name of its own at every request
            answer.close()
            raise TypeError(f"{function!r} returned a coroutine: write it as `async def`, or return its answer")
        return answer

    def framework(self) -> Any:
        """The framework's own request, for what is not asked for here."""
        return self.native

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.framework(), name)

    def __getitem__(self, name: str) -> Any:
        return self.native[name]


class Response:
    """What can be known of a response before it is sent: for `when`, which says whether its request counts."""

    __slots__ = ("headers", "status")

    def __init__(self, status: int, headers: RawHeaders = ()) -> None:
        self.status = status
        self.headers = Headers(headers)

    @property
    def status_code(self) -> int:
        """The status, as many frameworks call it."""
        return self.status


def _text(value: object) -> str | None:
    """A name as text; whoever has a number for a user means its digits."""
    return None if value is None else trimmed(str(value))
