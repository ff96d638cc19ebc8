"""The application of contract.py in FastAPI: routes have limits by the decorator, right below the route's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from crestgate.integrations.asgi import RateLimitMiddleware
from crestgate.integrations.fastapi import limit
from integration.frameworks.apps.starlette_app import pieces, waited
from integration.frameworks.contract import Setup
from integration.frameworks.servers import serve_asgi

__all__ = ["HAS_ROUTES", "as_dependency", "decorator_above", "decorator_below", "made", "serve"]

HAS_ROUTES = True
Routing = Callable[..., Callable[[Any], Any]]
Register = Callable[[Setup, Routing, str, Any], Any]
"""Given a path and its endpoint, makes it a route with the limit of the set-up."""


def _limit(setup: Setup) -> Any:
    return limit(setup.limits, limiter=setup.limiter, **setup.route)


def decorator_below(setup: Setup, route: Routing, path: str, endpoint: Any) -> Any:
    return route(path)(endpoint if setup.limits is None else _limit(setup)(endpoint))


def decorator_above(setup: Setup, route: Routing, path: str, endpoint: Any) -> Any:
    registered = route(path)(endpoint)
    return registered if setup.limits is None else _limit(setup)(registered)


def as_dependency(setup: Setup, route: Routing, path: str, endpoint: Any) -> Any:
    return route(path, dependencies=[] if setup.limits is None else [Depends(_limit(setup))])(endpoint)


def made(setup: Setup, register: Register) -> FastAPI:
    app = FastAPI(default_response_class=PlainTextResponse)
    router = APIRouter()  # the routes with limits are in a router that is included

    def layer(application: FastAPI, options: dict[str, Any] | None) -> None:
        if options is not None:
            application.add_middleware(RateLimitMiddleware, limiter=setup.limiter, **options)

    layer(app, setup.middleware)

    @app.api_route("/plain", methods=["GET", "HEAD", "OPTIONS"])
    async def plain(request: Request) -> Response:
        setup.handled.append(request.url.path)
        headers = {"Allow": "GET, HEAD, OPTIONS"} if request.method == "OPTIONS" else {}
        return PlainTextResponse("plain", headers=headers)

    def item(id: str, request: Request) -> str:  # noqa: A002 - what the route calls it; and not async, on purpose
        setup.handled.append(request.url.path)
        return id

    async def limited(request: Request) -> str:
        setup.handled.append(request.url.path)
        return "limited"

    async def login(request: Request) -> Response:
        setup.handled.append(request.url.path)
        wrong = await request.body() == b"wrong"
        return PlainTextResponse("no" if wrong else "yes", 401 if wrong else 200)

    async def own(request: Request) -> Response:
        setup.handled.append(request.url.path)
        return PlainTextResponse("own", 202, {"X-Own": "yes"})

    register(setup, router.get, "/item/{id}", item)
    register(setup, app.get, "/limited", limited)
    register(setup, router.post, "/login", login)
    register(setup, router.get, "/own", own)
    app.include_router(router)

    @app.get("/stream")
    async def stream(request: Request) -> Response:
        setup.handled.append(request.url.path)
        return StreamingResponse(pieces(setup, "{}\n"), media_type="text/plain")

    @app.get("/sse")
    async def sse(request: Request) -> Response:
        setup.handled.append(request.url.path)
        return StreamingResponse(pieces(setup, "data: {}\n\n"), media_type="text/event-stream")

    @app.post("/upload")
    async def upload(request: Request) -> str:
        setup.handled.append(request.url.path)
        size = 0
        async for piece in request.stream():
            size += len(piece)
        return str(size)

    @app.get("/boom")
    async def boom(request: Request) -> str:
        setup.handled.append(request.url.path)
        raise RuntimeError("boom")

    @app.get("/slow")
    async def slow(request: Request) -> str:
        setup.handled.append(request.url.path)
        setup.entered.set()
        await waited(setup)
        return "slow"

    sub = FastAPI(default_response_class=PlainTextResponse)
    layer(sub, setup.mounted)

    @sub.get("/hello")
    async def hello(request: Request) -> str:
        setup.handled.append(request.url.path)
        return "hello"

    app.mount("/mounted", sub)
    return app


@contextmanager
def serve(setup: Setup, register: Register = decorator_below) -> Iterator[str]:
    with serve_asgi(made(setup, register)) as url:
        yield url
