"""The application in Django, with async views, under ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from django.http import HttpResponse, HttpResponseNotAllowed, StreamingHttpResponse

from integration.frameworks.apps.django_project import asgi_application, patterns, written
from integration.frameworks.contract import Setup
from integration.frameworks.servers import serve_asgi

__all__ = ["HAS_ROUTES", "serve"]

HAS_ROUTES = True


@contextmanager
def serve(setup: Setup) -> Iterator[str]:
    """The URL of the application."""
    crestgate = None if setup.middleware is None else written(setup, setup.middleware)
    with serve_asgi(asgi_application(patterns(setup, _views(setup), _answering), crestgate)) as url:
        yield url


def _answering(setup: Setup, view: Callable[..., Any], *methods: str) -> Callable[..., Any]:
    @wraps(view)
    async def answers(request: Any, **parameters: Any) -> Any:
        if request.method == "OPTIONS":
            return HttpResponse(headers={"Allow": ", ".join([*methods, "OPTIONS"])})
        if request.method not in methods:
            return HttpResponseNotAllowed(methods)
        setup.handled.append(request.path)
        return await view(request, **parameters)

    return answers


async def _released(setup: Setup) -> None:
    """The test's thread sets it: the loop looks now and then."""
    while not setup.released.is_set():
        await asyncio.sleep(0.005)


def _views(setup: Setup) -> dict[str, Any]:
    async def boom(request: Any) -> Any:
        raise RuntimeError("boom")

    async def slow(request: Any) -> Any:
        setup.entered.set()
        await _released(setup)
        return HttpResponse("slow")

    async def pieces(first: bytes, second: bytes) -> AsyncIterator[bytes]:
        yield first
        await _released(setup)
        yield second

    async def stream(request: Any) -> Any:
        return StreamingHttpResponse(pieces(b"first\n", b"second\n"), content_type="text/plain")

    async def sse(request: Any) -> Any:
        return StreamingHttpResponse(pieces(b"data: first\n\n", b"data: second\n\n"), content_type="text/event-stream")

    return {
        "plain": _text("plain"),
        "item": _item,
        "limited": _text("limited"),
        "hello": _text("hello"),
        "own": _text("own", status=202, headers={"X-Own": "yes"}),
        "login": _login,
        "upload": _upload,
        "boom": boom,
        "slow": slow,
        "stream": stream,
        "sse": sse,
    }


def _text(text: str, **more: Any) -> Callable[..., Any]:
    async def view(request: Any) -> Any:
        return HttpResponse(text, **more)

    return view


async def _item(request: Any, id: int) -> Any:  # noqa: A002 - the parameter's name
    return HttpResponse(str(id))


async def _login(request: Any) -> Any:
    if request.body == b"wrong":
        return HttpResponse("no", status=401)
    return HttpResponse("yes")


async def _upload(request: Any) -> Any:
    count = 0
    while piece := request.read(65536):
        count += len(piece)
    return HttpResponse(str(count))
