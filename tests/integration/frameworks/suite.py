"""What the behaviour suite is run over, and how its tests talk to an application: over a socket, as any client does."""

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

__all__ = ["APPS", "HERE", "OTHER_WAYS", "ROUTED", "Answer", "Running", "answer_of", "items_of"]

APPS = ("starlette", "litestar", "quart", "wsgi", "fastapi", "flask", "django_asgi", "django_wsgi")
"""Modules of apps/, by what stands before `_app`."""
OTHER_WAYS = ("fastapi_above", "fastapi_dependency", "flask_above")
"""Further ones, in which the limits of routes are written in other ways and the rest is the same."""
ROUTED = (*APPS[4:], *OTHER_WAYS)
"""Those in which a route can have limits of its own."""
HERE = "127.0.0.1"
PATIENCE = 20.0


@dataclass(frozen=True)
class Answer:
    """What an application answered."""

    status: int
    headers: Mapping[str, str]
    """By names in small letters."""
    names: tuple[str, ...]
    """The names of all headers as they came, several times those that came so."""
    body: bytes

    @property
    def remaining(self) -> int:
        return int(self.headers["x-ratelimit-remaining"])

    def problem(self) -> dict[str, Any]:
        members: dict[str, Any] = json.loads(self.body)
        return members


@dataclass
class Running:
    """An application that runs, on virtual time."""

    url: str
    setup: Setup
    clock: FakeClock
    limiter: Limiter = field(init=False)

    def __post_init__(self) -> None:
        self.limiter = self.setup.limiter

    def connect(self) -> HTTPConnection:
        return HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE)

    def ask(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        connection = self.connect()
        try:
            connection.request(method, path, body, {"Connection": "close", **(headers or {})})
            return answer_of(connection.getresponse())
        finally:
            connection.close()

    def statuses(self, times: int, path: str = "/plain", **asked: Any) -> list[int]:
        return [self.ask(path, **asked).status for _ in range(times)]

    def raw(self, request: bytes) -> socket.socket:
        """A socket on which this was sent."""
        address = urlsplit(self.url)
        assert address.port is not None
        sock = socket.create_connection((address.hostname, address.port), PATIENCE)
        sock.sendall(request)
        return sock

    def left(self, limits: str, key: str = f"ip:{HERE}") -> int:
        return self.limiter.peek(key, limits).remaining


def answer_of(response: HTTPResponse) -> Answer:
    headers = response.getheaders()
    names = tuple(name.lower() for name, _ in headers)
    return Answer(response.status, {name.lower(): value for name, value in headers}, names, response.read())


def items_of(field_value: str) -> dict[str, dict[str, Any]]:
    """The items of a list, as the RFC's own parser reads it: their parameters by their names."""
    parsed = List()
    parsed.parse(field_value.encode("ascii"))
    names = [item.value for item in parsed]
    assert len(set(names)) == len(names), names
    return {item.value: dict(item.params) for item in parsed}
