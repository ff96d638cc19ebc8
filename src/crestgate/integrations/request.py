"""The request and the response that callables of the application are given, the same in all frameworks.

Key resolvers, exemptions, costs and hooks are plain callables that take a Request. It has the attributes that limits
need under the same names in all frameworks, and otherwise those of the framework's own request: `request.client.host`,
`request.user`, `request.META["…"]`.

Each framework has a subclass that reads its own request. Attributes are read only when they are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CoroutineType
from typing import Any
from urllib.parse import quote

from crestgate.http.client_address import TrustedProxies, peer_address
from crestgate.http.field_values import header_name_value, trimmed, trimmed_bytes

__all__ = ["HeaderMap", "Identity", "Request", "Response", "encode_headers", "encoded_path", "is_plain_path"]

RequestCallable = Callable[["Request"], Any]
is_plain_path = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]*)+").fullmatch
"""Whether a path needs no percent-encoding."""
RawHeaders = Sequence[tuple[bytes, bytes]]
_SEVERAL = "several"
"""The identity for a header with several different values."""
_UNREAD = "unread"
"""Marks an address that was not read yet. Compared by identity."""


def encoded_path(raw: bytes) -> str:
    """Percent-encode a path that a server has decoded, so that a `?` or `%` in it is part of the path."""
    return quote(raw, safe="/~!$&'()*+,;=:@")


def encode_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """A response's headers as bytes, with names in lower case."""
    return [(name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in headers]


class HeaderMap(Mapping[str, str]):
    """The headers of a request or a response by case-insensitive name; several values are joined by commas."""

    __slots__ = ("_raw",)

    def __init__(self, raw: RawHeaders) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> str:
        values = self._values(name)
        if not values:
            raise KeyError(name)
        return b", ".join(map(trimmed_bytes, values)).decode("latin-1")

    def identity_in(self, name: str) -> str | None:
        """The identity in a header; None when it is absent or empty.

        Applications use the first or the last of several values. If each combination were an identity, a caller could
        create a new one for every request by adding a random value. So all requests with several different values share
        one identity.
        """
        header_name = name.lower().encode("latin-1", "replace")
        values = {header_name_value(header_name, value) for value in self._values(name)} - {None}
        if len(values) > 1:
            return _SEVERAL
        return values.pop() if values else None

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key.decode("latin-1").lower() for key, _ in self._raw))

    def __len__(self) -> int:
        return len({key.lower() for key, _ in self._raw})

    def _values(self, name: str) -> list[bytes]:
        header_name = name.lower().encode("latin-1", "replace")
        return [value for key, value in self._raw if key.lower() == header_name]


class Identity:
    """How a layer identifies the caller: trusted proxies, callables of the application, and the API key header."""

    __slots__ = ("api_key_header", "attributes", "client", "proxies", "tier", "user")

    def __init__(
        self,
        proxies: TrustedProxies,
        user: RequestCallable | None = None,
        tier: RequestCallable | None = None,
        client: RequestCallable | None = None,
        api_key_header: str = "X-API-Key",
        attributes: RequestCallable | None = None,
    ) -> None:
        self.proxies = proxies
        self.user = user
        self.tier = tier
        self.client = client
        self.api_key_header = api_key_header
        self.attributes = attributes


class Request:
    """A request. `native` is the framework's own request (ASGI: the scope)."""

    __slots__ = ("_address", "identity", "native", "results")

    def __init__(self, native: Any, identity: Identity) -> None:
        self.native = native
        self.identity = identity
        self._address: str | None = _UNREAD
        self.results: dict[RequestCallable, Any] = {}
        """The results of coroutine functions: see `LimitLayer.resolve_coroutines`."""

    # Implemented for each framework.

    @property
    def method(self) -> str:
        raise NotImplementedError

    @property
    def path(self) -> str:
        """The whole path as received, including the mount path of a sub-application."""
        raise NotImplementedError

    @property
    def raw_headers(self) -> RawHeaders:
        """The headers in their order, with names in lower case."""
        raise NotImplementedError

    @property
    def peer(self) -> str | None:
        """The address of the connection's other end; None when it has none (a Unix socket)."""
        raise NotImplementedError

    @property
    def route(self) -> str | None:
        """The template of the request's route, such as `/item/{id}`; None when it has none, or it is unknown."""
        return None

    @property
    def principal(self) -> str | None:
        """The user id of the framework's own authentication."""
        return None

    # The same for all frameworks.

    @property
    def headers(self) -> HeaderMap:
        return HeaderMap(self.raw_headers)

    @property
    def address(self) -> str | None:
        """The client's address, behind trusted proxies."""
        if self._address is _UNREAD:
            proxies = self.identity.proxies
            self._address = proxies.address(self.peer, self.raw_headers) if proxies.any else peer_address(self.peer)
        return self._address

    @property
    def user_id(self) -> str | None:
        """The user's id: the result of the layer's `user=`, else the framework's principal."""
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
    def attributes(self) -> dict[str, str] | None:
        """The request's own dimensions: the result of the layer's `attributes=`. One whose value is None or blank is
        left out."""
        function = self.identity.attributes
        given = None if function is None else self.call(function)
        if given is None:
            return None
        if not isinstance(given, Mapping):
            raise TypeError(f"attributes {function!r} must return a mapping of names to text, or None, not {given!r}")
        found = {name: _text(value) for name, value in given.items()}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def api_key(self) -> str | None:
        """The API key in its header."""
        return self.headers.identity_in(self.identity.api_key_header)

    def call(self, function: RequestCallable) -> Any:
        """The result of a callable of the application for this request."""
        results = self.results
        if function in results:
            return results[function]
        result = function(self)
        if isinstance(result, CoroutineType):  # it would be true, and another key for each request
            result.close()
            raise TypeError(f"{function!r} returned a coroutine: write it as `async def`, or return its result")
        return result

    def framework(self) -> Any:
        """The framework's own request, for all other attributes."""
        return self.native

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.framework(), name)

    def __getitem__(self, name: str) -> Any:
        return self.native[name]


class Response:
    """Status and headers of a response that is about to be sent, for `when`."""

    __slots__ = ("headers", "status")

    def __init__(self, status: int, headers: RawHeaders = ()) -> None:
        self.status = status
        self.headers = HeaderMap(headers)

    @property
    def status_code(self) -> int:
        """Another name of `status`, which many frameworks use."""
        return self.status


def _text(value: object) -> str | None:
    """A name as text; a number is converted."""
    return None if value is None else trimmed(str(value))
