"""The application of contract.py in Quart: limits come from the middleware alone, around `asgi_app`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quart import Blueprint, Quart, Response, request

from crestgate.integrations.asgi import RateLimitMiddleware
from integration.frameworks.apps.starlette_app import pieces, waited
from integration.frameworks.contract import Setup
from integration.frameworks.servers import serve_asgi

__all__ = ["HAS_ROUTES", "serve"]

HAS_ROUTES = False


def made(setup: Setup) -> Quart:
    app = Quart(__name__)
    app.config["MAX_CONTENT_LENGTH"] = None

    @app.before_request
    async def note() -> None:
        if request.url_rule is not None and request.method != "OPTIONS":
            setup.handled.append(request.path)

    def text(body: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
        return Response(body, status, headers, content_type="text/plain")

    @app.get("/plain")
    async def plain() -> Response:
        return text("plain")

    @app.get("/item/<id>")
    async def item(id: str) -> Response:  # noqa: A002 - what the route calls it
        return text(id)

    @app.get("/limited")
    async def limited() -> Response:
        return text("limited")

    @app.post("/login")
    async def login() -> Response:
        wrong = await request.get_data() == b"wrong"
        return text("no", 401) if wrong else text("yes")

    @app.get("/stream")
    async def stream() -> Response:
        return Response(pieces(setup, "{}\n"), content_type="text/plain")

    @app.get("/sse")
    async def sse() -> Response:
        return Response(pieces(setup, "data: {}\n\n"), content_type="text/event-stream")

    @app.post("/upload")
    async def upload() -> Response:
        size = 0
        async for piece in request.body:
            size += len(piece)
        return text(str(size))

    @app.get("/boom")
    async def boom() -> Response:
        raise RuntimeError("boom")

    @app.get("/slow")
    async def slow() -> Response:
        setup.entered.set()
        await waited(setup)
        return text("slow")

    @app.get("/own")
    async def own() -> Response:
        return text("own", 202, {"X-Own": "yes"})

    sub = Blueprint("sub", __name__, url_prefix="/mounted")

    @sub.get("/hello")
    async def hello() -> Response:
        return text("hello")

    app.register_blueprint(sub)
    return app


def around(app: Any, setup: Setup, options: dict[str, Any] | None) -> Any:
    return app if options is None else RateLimitMiddleware(app, setup.limiter, **options)


@contextmanager
def serve(setup: Setup) -> Iterator[str]:
    app: Any = made(setup)
    whole = app.asgi_app

    async def placed(scope: Any, receive: Any, send: Any) -> None:  # a blueprint has no middleware of its own
        inside = around(whole, setup, setup.mounted) if scope.get("path", "").startswith("/mounted/") else whole
        await inside(scope, receive, send)

    app.asgi_app = around(placed if setup.mounted is not None else whole, setup, setup.middleware)
    with serve_asgi(app) as url:
        yield url
