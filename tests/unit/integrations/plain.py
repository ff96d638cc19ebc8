"""A request of no framework, and limiters on virtual time: for tests of what all frameworks share."""

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

__all__ = ["CLIENT", "Plain", "admits", "asked", "limiter_on", "plain", "raw"]

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


def plain(path: str = "/", *, identity: Identity | None = None, **said: Any) -> Plain:
    """A GET by CLIENT, unless something else is said. Other names are headers, or what its framework knows."""
    headers = raw(said.pop("headers", {}))
    native: dict[str, Any] = {"method": "GET", "path": path, "raw_headers": headers, "peer": CLIENT}
    native |= {"template": None, "logged_in": None, **said}
    return Plain(SimpleNamespace(**native), identity or Identity(TrustedProxies()))


def asked(layer: LimitLayer[Any], path: str = "/", **said: Any) -> Plain:
    """The same as one layer sees it: by what it was told about who asks."""
    return plain(path, identity=layer.identity, **said)


def limiter_on(clock: FakeClock | None = None, **options: Any) -> Limiter:
    return Limiter("memory://", clock=clock or FakeClock(NOW_US / 1_000_000), **options)


def admits(layer: LimitLayer[Limiter], times: int, made: Callable[[], Request]) -> int:
    """How many of so many requests pass a gate, each a visit of its own."""
    passed = 0
    for _ in range(times):
        admission = check_sync(layer, made(), RequestState())
        passed += admission is None or not admission.refused
    return passed
