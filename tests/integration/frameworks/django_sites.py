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
    """A limiter whose time stands still."""
    return Limiter("memory://", clock=FakeClock(1_700_000_000), **more)


def view_of(kind: str, answer: Callable[..., Any]) -> Any:
    """A view, sync or async, of what it answers."""
    if kind == "wsgi":

        def view(request: Any, *args: Any, **parameters: Any) -> Any:
            return answer(request, *args, **parameters)

        return view

    async def view_async(request: Any, *args: Any, **parameters: Any) -> Any:
        await asyncio.sleep(0)
        return answer(request, *args, **parameters)

    return view_async


def call(view: Any, *args: Any, **parameters: Any) -> Any:
    """What a view answers, whatever its kind."""
    answer = view(*args, **parameters)
    if not asyncio.iscoroutine(answer):
        return answer

    async def awaited() -> Any:
        return await answer

    return asyncio.run(awaited())


def remaining(response: httpx.Response) -> list[int]:
    """What is left of each limit that the headers tell of."""
    return [int(item.partition(";r=")[2].partition(";")[0]) for item in response.headers["ratelimit"].split(", ")]


class Site:
    """A project, asked without a socket. `crestgate` is its setting; None: it has no middleware."""

    def __init__(
        self, kind: str, routes: Iterable[Any], crestgate: dict[str, Any] | None = None, around: Iterable[str] = ()
    ) -> None:
        configure()
        self._runner = asyncio.Runner()
        if kind == "wsgi":
            wsgi = httpx.WSGITransport(app=wsgi_application(routes, crestgate, around))
            self._client = httpx.Client(transport=wsgi, base_url="http://site")
            return
        self._client = None  # type: ignore[assignment] # the other one is there
        asgi = httpx.ASGITransport(app=asgi_application(routes, crestgate, around))
        self._async_client = httpx.AsyncClient(transport=asgi, base_url="http://site")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        if self._client is not None:
            return self._client.request(method, path, **more)
        return self._runner.run(self._async_client.request(method, path, **more))

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.ask("GET", path, **more)

    def statuses(self, *paths: str) -> list[int]:
        return [self.get(path).status_code for path in paths]
