"""The application of contract.py in Litestar: limits come from the middleware alone.

It is around the application, since Litestar's own list of middlewares is only for routes that there are: a request for
none would not be counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from litestar import Litestar, Request, Response, Router, get, post, route
from litestar.middleware.base import DefineMiddleware
from litestar.response import Stream

from crestgate.integrations.asgi import RateLimitMiddleware
from integration.frameworks.apps.starlette_app import pieces, waited
from integration.frameworks.contract import Setup
from integration.frameworks.servers import serve_asgi

__all__ = ["HAS_ROUTES", "serve"]

HAS_ROUTES = False
_AnyRequest = Request[Any, Any, Any]


def made(setup: Setup) -> Litestar:
    @route("/plain", http_method=["GET", "HEAD", "OPTIONS"], media_type="text/plain")
    async def plain(request: _AnyRequest) -> Response[str]:
        setup.handled.append(request.url.path)
        allow = {"Allow": "GET, HEAD, OPTIONS"} if request.method == "OPTIONS" else {}
        return Response("plain", status_code=200, headers=allow, media_type="text/plain")

    @get("/item/{item_id:str}", media_type="text/plain")
    async def item(request: _AnyRequest, item_id: str) -> str:
        setup.handled.append(request.url.path)
        return item_id

    @get("/limited", media_type="text/plain")
    async def limited(request: _AnyRequest) -> str:
        setup.handled.append(request.url.path)
        return "limited"

    @post("/login")
    async def login(request: _AnyRequest) -> Response[str]:
        setup.handled.append(request.url.path)
        wrong = await request.body() == b"wrong"
        return Response("no" if wrong else "yes", status_code=401 if wrong else 200, media_type="text/plain")

    @get("/hello", media_type="text/plain")
    async def hello(request: _AnyRequest) -> str:
        setup.handled.append(request.url.path)
        return "hello"

    @get("/stream")
    async def stream(request: _AnyRequest) -> Stream:
        setup.handled.append(request.url.path)
        return Stream(pieces(setup, "{}\n"), media_type="text/plain")

    @get("/sse")
    async def sse(request: _AnyRequest) -> Stream:
        setup.handled.append(request.url.path)
        return Stream(pieces(setup, "data: {}\n\n"), media_type="text/event-stream")

    @post("/upload", status_code=200, media_type="text/plain", request_max_body_size=None)
    async def upload(request: _AnyRequest) -> str:
        setup.handled.append(request.url.path)
        size = 0
        async for piece in request.stream():
            size += len(piece)
        return str(size)

    @get("/boom")
    async def boom(request: _AnyRequest) -> str:
        setup.handled.append(request.url.path)
        raise RuntimeError("boom")

    @get("/slow", media_type="text/plain")
    async def slow(request: _AnyRequest) -> str:
        setup.handled.append(request.url.path)
        setup.entered.set()
        await waited(setup)
        return "slow"

    @get("/own")
    async def own(request: _AnyRequest) -> Response[str]:
        setup.handled.append(request.url.path)
        return Response("own", status_code=202, headers={"X-Own": "yes"}, media_type="text/plain")

    def layer(options: dict[str, Any] | None) -> list[DefineMiddleware]:
        return [] if options is None else [DefineMiddleware(RateLimitMiddleware, limiter=setup.limiter, **options)]

    sub = Router("/mounted", route_handlers=[hello], middleware=layer(setup.mounted))
    handlers: list[Any] = [plain, item, limited, login, sub, stream, sse, upload, boom, slow, own]
    return Litestar(handlers, openapi_config=None, logging_config=None)


@contextmanager
def serve(setup: Setup) -> Iterator[str]:
    app: Any = made(setup)
    if setup.middleware is not None:
        app = RateLimitMiddleware(app, setup.limiter, **setup.middleware)
    with serve_asgi(app) as url:
        yield url
