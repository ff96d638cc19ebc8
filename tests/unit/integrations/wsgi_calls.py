"""Calls of WSGI applications, checked against the specification by the standard library's validator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any, NamedTuple
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

from crestgate import Limiter
from crestgate.testing import FakeClock

__all__ = ["CLIENT", "Answer", "call", "environ_for", "limiter_on"]

CLIENT = "203.0.113.7"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    """With names in small letters; one that came twice is an error."""
    body: bytes

    @property
    def remaining(self) -> int:
        return int(self.headers["x-ratelimit-remaining"])


def limiter_on(clock: FakeClock | None = None, **options: Any) -> Limiter:
    return Limiter("memory://", clock=clock or FakeClock(1_700_000_000), **options)


def environ_for(path: str = "/", method: str = "GET", **more: Any) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "REMOTE_ADDR": CLIENT,
        "wsgi.input": BytesIO(),
    }
    environ.update(more)
    setup_testing_defaults(environ)
    return environ


def call(app: Callable[..., Iterable[bytes]], path: str = "/", method: str = "GET", **more: Any) -> Answer:
    """The response that a server would send."""
    starts: list[tuple[str, list[tuple[str, str]]]] = []

    def start(status: str, headers: list[tuple[str, str]], *_: Any) -> Callable[[bytes], object]:
        starts.append((status, headers))
        return lambda piece: None

    checked: Any = validator(app)
    body = checked(environ_for(path, method, **more), start)
    try:
        sent = b"".join(body)
    finally:
        body.close()
    status, headers = starts[-1]
    names = [name.lower() for name, _ in headers]
    assert len(names) == len(set(names)), headers
    return Answer(int(status[:3]), {name.lower(): value for name, value in headers}, sent)
