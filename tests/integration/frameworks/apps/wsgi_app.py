"""The application as a WSGI function, with nothing of a framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from crestgate.integrations.wsgi import RateLimitMiddleware
from integration.frameworks.contract import Setup
from integration.frameworks.servers import serve_wsgi

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["HAS_ROUTES", "serve"]

HAS_ROUTES = False


@contextmanager
def serve(setup: Setup) -> Iterator[str]:
    """The URL of the application."""
    app = application(setup)
    if setup.middleware is not None:
        app = RateLimitMiddleware(app, setup.limiter, **setup.middleware)
    with serve_wsgi(app) as url:
        yield url


def application(setup: Setup) -> WSGIApplication:
    """The application without the middleware around it."""
    mounted: WSGIApplication = _mounted(setup)
    if setup.mounted is not None:
        mounted = RateLimitMiddleware(mounted, setup.limiter, **setup.mounted)

    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/mounted" or path.startswith("/mounted/"):
            environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + "/mounted"
            environ["PATH_INFO"] = path.removeprefix("/mounted")
            return mounted(environ, start)
        handler, methods = _handler(setup, path)
        if handler is None:
            return _text(environ, start, "404 Not Found", b"not found")
        method = environ["REQUEST_METHOD"]
        if method == "OPTIONS":
            start("200 OK", [("Allow", ", ".join(methods)), ("Content-Length", "0")])
            return []
        if method not in methods:
            return _text(environ, start, "405 Method Not Allowed", b"not allowed")
        setup.handled.append(path)
        return handler(environ, start)

    return app


Handler = Callable[[Any, Any], Iterable[bytes]]


def _handler(setup: Setup, path: str) -> tuple[Handler | None, list[str]]:
    reading = ["GET", "HEAD", "OPTIONS"]
    writing = ["POST", "OPTIONS"]
    if path.startswith("/item/"):
        return lambda environ, start: _text(environ, start, "200 OK", path.removeprefix("/item/").encode()), reading
    if path in ("/plain", "/limited"):
        return lambda environ, start: _text(environ, start, "200 OK", path[1:].encode()), reading
    known: dict[str, tuple[Handler, list[str]]] = {
        "/login": (_login, writing),
        "/upload": (_upload, writing),
        "/boom": (_boom, reading),
        "/own": (_own, reading),
        "/slow": (lambda environ, start: _slow(setup, environ, start), reading),
        "/stream": (lambda environ, start: _stream(setup, start, "text/plain", b"first\n", b"second\n"), reading),
        "/sse": (
            lambda environ, start: _stream(setup, start, "text/event-stream", b"data: first\n\n", b"data: second\n\n"),
            reading,
        ),
    }
    return known.get(path, (None, []))


def _text(environ: WSGIEnvironment, start: StartResponse, status: str, body: bytes, *more: Any) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), *more])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def _mounted(setup: Setup) -> WSGIApplication:
    def mounted(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/hello":
            return _text(environ, start, "404 Not Found", b"not found")
        setup.handled.append("/mounted/hello")
        return _text(environ, start, "200 OK", b"hello")

    return mounted


def _login(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    if body == b"wrong":
        return _text(environ, start, "401 Unauthorized", b"no")
    return _text(environ, start, "200 OK", b"yes")


def _upload(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
    left = int(environ.get("CONTENT_LENGTH") or 0)
    count = 0
    while left:
        piece = environ["wsgi.input"].read(min(left, 65536))
        if not piece:
            break
        count += len(piece)
        left -= len(piece)
    return _text(environ, start, "200 OK", str(count).encode())


def _boom(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
    raise RuntimeError("boom")


def _own(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
    return _text(environ, start, "202 Accepted", b"own", ("X-Own", "yes"))


def _slow(setup: Setup, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
    setup.entered.set()
    setup.released.wait(30)
    return _text(environ, start, "200 OK", b"slow")


def _stream(setup: Setup, start: StartResponse, kind: str, first: bytes, second: bytes) -> Iterator[bytes]:
    """A generator: it tells its status when its first piece is asked for."""
    start("200 OK", [("Content-Type", kind)])
    yield first
    setup.released.wait(30)
    yield second
