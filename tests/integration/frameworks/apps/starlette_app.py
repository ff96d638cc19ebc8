"""The application of contract.py in Starlette: limits come from the middleware alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from crestgate.integrations.asgi import RateLimitMiddleware
from integration.frameworks.contract import Setup
from integration.frameworks.servers import serve_asgi

__all__ = ["HAS_ROUTES", "pieces", "serve", "waited"]

HAS_ROUTES = False


async def waited(setup: Setup) -> None:
    """Until the test lets go, without holding up the loop."""
    while not setup.released.is_set():
        await asyncio.sleep(0.005)


async def pieces(setup: Setup, shape: str) -> AsyncIterator[bytes]:
    yield shape.format("first").encode()
    await waited(setup)
    yield shape.format("second").encode()


def made(setup: Setup) -> Starlette:
    async def plain(request: Request) -> Response:
        setup.handled.append(request.url.path)
        if request.method == "OPTIONS":
            return Response(headers={"Allow": "GET, HEAD, OPTIONS"})
        return PlainTextResponse("plain")

    async def item(request: Request) -> Response:
        setup.handled.append(request.url.path)
        return PlainTextResponse(str(request.path_params["id"]))

    async def limited(request: Request) -> Response:
        setup.handled.append(request.url.path)
        return PlainTextResponse("limited")

    async def login(request: Request) -> Response:
        setup.handled.append(request.url.path)
        wrong = await request.body() == b"wrong"
        return PlainTextResponse("no" if wrong else "yes", 401 if wrong else 200)

    async def hello(request: Request) -> Response:
        setup.handled.append(request.url.path)
        return PlainTextResponse("hello")

    async def stream(request: Request) -> Response:
        setup.handled.append(request.url.path)
        return StreamingResponse(pieces(setup, "{}\n"), media_type="text/plain")

    async def sse(request: Request) -> Response:
        setup.handled.append(request.url.path)
        return StreamingResponse(pieces(setup, "data: {}\n\n"), media_type="text/event-stream")

    async def upload(request: Request) -> Response:
        setup.handled.append(request.url.path)
        size = 0
        async for piece in request.stream():
            size += len(piece)
        return PlainTextResponse(str(size))

    async def boom(request: Request) -> Response:
        setup.handled.append(request.url.path)
        raise RuntimeError("boom")

    async def slow(request: Request) -> Response:
        setup.handled.append(request.url.path)
        setup.entered.set()
        await waited(setup)
        return PlainTextResponse("slow")

    async def own(request: Request) -> Response:
        setup.handled.append(request.url.path)
        return PlainTextResponse("own", 202, {"X-Own": "yes"})

    def layer(options: dict[str, Any] | None) -> list[Middleware]:
        return [] if options is None else [Middleware(RateLimitMiddleware, limiter=setup.limiter, **options)]

    sub = Starlette(routes=[Route("/hello", hello)], middleware=layer(setup.mounted))
    routes = [
        Route("/plain", plain, methods=["GET", "OPTIONS"]),
        Route("/item/{id}", item),
        Route("/limited", limited),
        Route("/login", login, methods=["POST"]),
        Mount("/mounted", sub),
        Route("/stream", stream),
        Route("/sse", sse),
        Route("/upload", upload, methods=["POST"]),
        Route("/boom", boom),
        Route("/slow", slow),
        Route("/own", own),
    ]
    return Starlette(routes=routes, middleware=layer(setup.middleware))


@contextmanager
def serve(setup: Setup) -> Iterator[str]:
    with serve_asgi(made(setup)) as url:
        yield url
