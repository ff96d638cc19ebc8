"""The application in Flask: the extension limits its routes, the WSGI middleware all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flask import Flask, Response, request
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from crestgate.integrations.flask import Crestgate
from crestgate.integrations.wsgi import RateLimitMiddleware
from integration.frameworks.contract import Setup
from integration.frameworks.servers import serve_wsgi

__all__ = ["HAS_ROUTES", "application", "serve"]

HAS_ROUTES = True
Decorator = Callable[[Any], Any]


@contextmanager
def serve(setup: Setup) -> Iterator[str]:
    """The URL of the application."""
    with serve_wsgi(application(setup, above=False)) as url:
        yield url


def application(setup: Setup, above: bool) -> Flask:
    """The application. With `above`, the limits stand above the routes."""
    app = Flask("contract")
    app.logger.disabled = True  # /boom is no news
    gate = Crestgate(app, limiter=setup.limiter)
    _views(app, setup, _routes(app, gate, setup, above))
    mounted: Any = _mounted(setup)
    if setup.mounted is not None:
        mounted.wsgi_app = RateLimitMiddleware(mounted.wsgi_app, setup.limiter, **setup.mounted)
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/mounted": mounted})  # type: ignore[method-assign]  # Flask's way
    if setup.middleware is not None:
        app.wsgi_app = RateLimitMiddleware(  # type: ignore[method-assign]
            app.wsgi_app, setup.limiter, **setup.middleware
        )
    return app


def _routes(app: Flask, gate: Crestgate, setup: Setup, above: bool) -> Callable[..., Decorator]:
    """What makes a view a route with limits."""

    def routed(path: str, **options: Any) -> Decorator:
        def decorate(view: Any) -> Any:
            route = app.route(path, **options)
            if setup.limits is None:
                return route(view)
            limit: Decorator = gate.limit(setup.limits, **setup.route)
            return limit(route(view)) if above else route(limit(view))

        return decorate

    return routed


def _views(app: Flask, setup: Setup, limited: Callable[..., Decorator]) -> None:
    @app.before_request
    def handled() -> None:
        if request.url_rule is not None and request.method != "OPTIONS":
            setup.handled.append(request.path)

    @app.get("/plain")
    def plain() -> str:
        return "plain"

    @limited("/item/<name>")
    def item(name: str) -> str:
        return name

    @limited("/limited")
    def of_its_own() -> str:
        return "limited"

    @limited("/login", methods=["POST"])
    def login() -> tuple[str, int]:
        return ("no", 401) if request.get_data() == b"wrong" else ("yes", 200)

    @limited("/own")
    def own() -> Response:
        return Response("own", 202, {"X-Own": "yes"})

    @app.get("/stream")
    def stream() -> Response:
        return Response(_pieces(setup, "first\n", "second\n"), content_type="text/plain")

    @app.get("/sse")
    def events() -> Response:
        return Response(_pieces(setup, "data: first\n\n", "data: second\n\n"), content_type="text/event-stream")

    @app.post("/upload")
    def upload() -> str:
        count = 0
        while piece := request.stream.read(65536):
            count += len(piece)
        return str(count)

    @app.get("/boom")
    def boom() -> str:
        raise RuntimeError("boom")

    @app.get("/slow")
    def slow() -> str:
        setup.entered.set()
        setup.released.wait(30)
        return "slow"


def _pieces(setup: Setup, first: str, second: str) -> Iterator[str]:
    yield first
    setup.released.wait(30)
    yield second


def _mounted(setup: Setup) -> Flask:
    mounted = Flask("mounted")

    @mounted.get("/hello")
    def hello() -> str:
        setup.handled.append("/mounted/hello")
        return "hello"

    return mounted
