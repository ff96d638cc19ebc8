"""Django projects in a few lines: one with sync views under WSGI, and the same with async views under ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Self

import httpx

from crestgate import Limiter
from crestgate.testing import FakeClock
from integration.frameworks.apps.django_project import asgi_application, configure, wsgi_application

__all__ = ["KINDS", "Site", "call", "limiter", "remaining", "view_of"]

KINDS = ("wsgi", "asgi")


def limiter(**more: Any) -> Limiter:
    """A limiter on a fixed clock."""
    return Limiter("memory://", clock=FakeClock(1_700_000_000), **more)


def view_of(kind: str, handler: Callable[..., Any]) -> Any:
    """A sync or async view that returns the result of a handler."""
    if kind == "wsgi":

        def view(request: Any, *args: Any, **parameters: Any) -> Any:
            return handler(request, *args, **parameters)

        return view

    async def view_async(request: Any, *args: Any, **parameters: Any) -> Any:
        await asyncio.sleep(0)
        return handler(request, *args, **parameters)

    return view_async


def call(view: Any, *args: Any, **parameters: Any) -> Any:
    """Call a sync or async view and return its response."""
    result = view(*args, **parameters)
    if not asyncio.iscoroutine(result):
        return result

    async def awaited() -> Any:
        return await result

    return asyncio.run(awaited())


def remaining(response: httpx.Response) -> list[int]:
    """The remaining count of each limit in the headers."""
    return [int(item.partition(";r=")[2].partition(";")[0]) for item in response.headers["ratelimit"].split(", ")]


class Site:
    """A project called without a socket. `crestgate` is its setting; None: no middleware."""

    def __init__(
        self, kind: str, routes: Iterable[Any], crestgate: dict[str, Any] | None = None, around: Iterable[str] = ()
    ) -> None:
        configure()
        self._runner = asyncio.Runner()
        if kind == "wsgi":
            wsgi = httpx.WSGITransport(app=wsgi_application(routes, crestgate, around))
            self._client = httpx.Client(transport=wsgi, base_url="http://site")
            return
        self._client = None  # type: ignore[assignment] # the async client is used
        asgi = httpx.ASGITransport(app=asgi_application(routes, crestgate, around))
        self._async_client = httpx.AsyncClient(transport=asgi, base_url="http://site")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        if self._client is not None:
            return self._client.request(method, path, **more)
        return self._runner.run(self._async_client.request(method, path, **more))

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def statuses(self, *paths: str) -> list[int]:
        return [self.get(path).status_code for path in paths]
