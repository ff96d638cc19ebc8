"""A framework-independent request, and limiters on virtual time, for tests of shared code."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from crestgate import Limiter
from crestgate.http.client_address import TrustedProxies
from crestgate.integrations.drivers import check_sync
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request import Identity, RawHeaders, Request
from crestgate.integrations.request_state import RequestState
from crestgate.testing import FakeClock
from unit.rules.cases import NOW_US

__all__ = ["CLIENT", "Plain", "admits", "layer_request", "limiter_on", "plain", "raw"]

CLIENT = "203.0.113.9"


class Plain(Request):
    """A request whose framework is a plain object."""

    @property
    def method(self) -> str:
        method: str = self.native.method
        return method

    @property
    def path(self) -> str:
        path: str = self.native.path
        return path

    @property
    def raw_headers(self) -> RawHeaders:
        headers: RawHeaders = self.native.raw_headers
        return headers

    @property
    def peer(self) -> str | None:
        peer: str | None = self.native.peer
        return peer

    @property
    def route(self) -> str | None:
        route: str | None = self.native.template
        return route

    @property
    def principal(self) -> str | None:
        name: str | None = self.native.logged_in
        return name


def raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def plain(path: str = "/", *, identity: Identity | None = None, **fields: Any) -> Plain:
    """By default a GET by CLIENT. Other fields are `headers`, or attributes of the native request."""
    headers = raw(fields.pop("headers", {}))
    native: dict[str, Any] = {"method": "GET", "path": path, "raw_headers": headers, "peer": CLIENT}
    native |= {"template": None, "logged_in": None, **fields}
    return Plain(SimpleNamespace(**native), identity or Identity(TrustedProxies()))


def layer_request(layer: LimitLayer[Any], path: str = "/", **fields: Any) -> Plain:
    """A request with the identity options of a layer."""
    return plain(path, identity=layer.identity, **fields)


def limiter_on(clock: FakeClock | None = None, **options: Any) -> Limiter:
    return Limiter("memory://", clock=clock or FakeClock(NOW_US / 1_000_000), **options)


def admits(layer: LimitLayer[Limiter], times: int, made: Callable[[], Request]) -> int:
    """How many of `times` requests pass a layer, each with its own state."""
    passed = 0
    for _ in range(times):
        admission = check_sync(layer, made(), RequestState())
        passed += admission is None or not admission.refused
    return passed
