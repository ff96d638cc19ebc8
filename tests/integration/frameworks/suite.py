"""The applications of the behaviour suite, and an HTTP client for them over a socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from http_sfv.list import List

from crestgate import Limiter
from crestgate.testing import FakeClock
from integration.frameworks.contract import Setup

__all__ = ["APPS", "HERE", "ROUTED", "ROUTE_VARIANTS", "AppResponse", "Running", "items_of", "read_response"]

APPS = ("starlette", "litestar", "quart", "wsgi", "fastapi", "flask", "django_asgi", "django_wsgi")
"""Modules of apps/, without the suffix `_app`."""
ROUTE_VARIANTS = ("fastapi_above", "fastapi_dependency", "flask_above")
"""Variants that declare the limits of routes differently."""
ROUTED = (*APPS[4:], *ROUTE_VARIANTS)
"""Applications whose routes can have their own limits."""
HERE = "127.0.0.1"
TIMEOUT = 20.0


@dataclass(frozen=True)
class AppResponse:
    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    names: tuple[str, ...]
    """The names of all headers as received, with duplicates."""
    body: bytes

    @property
    def remaining(self) -> int:
        return int(self.headers["x-ratelimit-remaining"])

    def problem(self) -> dict[str, Any]:
        members: dict[str, Any] = json.loads(self.body)
        return members


@dataclass
class Running:
    """A running application, on virtual time."""

    url: str
    setup: Setup
    clock: FakeClock
    limiter: Limiter = field(init=False)

    def __post_init__(self) -> None:
        self.limiter = self.setup.limiter

    def connect(self) -> HTTPConnection:
        return HTTPConnection(urlsplit(self.url).netloc, timeout=TIMEOUT)

    def request(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> AppResponse:
        connection = self.connect()
        try:
            connection.request(method, path, body, {"Connection": "close", **(headers or {})})
            return read_response(connection.getresponse())
        finally:
            connection.close()

    def statuses(self, times: int, path: str = "/plain", **options: Any) -> list[int]:
        return [self.request(path, **options).status for _ in range(times)]

    def raw(self, request: bytes) -> socket.socket:
        """Send raw bytes and return the socket."""
        address = urlsplit(self.url)
        assert address.port is not None
        sock = socket.create_connection((address.hostname, address.port), TIMEOUT)
        sock.sendall(request)
        return sock

    def left(self, limits: str, key: str = f"ip:{HERE}") -> int:
        return self.limiter.peek(key, limits).remaining


def read_response(response: HTTPResponse) -> AppResponse:
    headers = response.getheaders()
    names = tuple(name.lower() for name, _ in headers)
    return AppResponse(response.status, {name.lower(): value for name, value in headers}, names, response.read())


def items_of(field_value: str) -> dict[str, dict[str, Any]]:
    """The parameters of each item of a structured field list, by item name."""
    parsed = List()
    parsed.parse(field_value.encode("ascii"))
    names = [item.value for item in parsed]
    assert len(set(names)) == len(names), names
    return {item.value: dict(item.params) for item in parsed}
