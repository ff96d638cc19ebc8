"""The application in Django, with sync views, under WSGI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from django.http import HttpResponse, HttpResponseNotAllowed, StreamingHttpResponse

from integration.frameworks.apps.django_project import patterns, written, wsgi_application
from integration.frameworks.contract import Setup
from integration.frameworks.servers import serve_wsgi

__all__ = ["HAS_ROUTES", "serve"]

HAS_ROUTES = True


@contextmanager
def serve(setup: Setup) -> Iterator[str]:
    """The URL of the application."""
    crestgate = None if setup.middleware is None else written(setup, setup.middleware)
    with serve_wsgi(wsgi_application(patterns(setup, _views(setup), _answering), crestgate)) as url:
        yield url


def _answering(setup: Setup, view: Callable[..., Any], *methods: str) -> Callable[..., Any]:
    @wraps(view)
    def answers(request: Any, **parameters: Any) -> Any:
        if request.method == "OPTIONS":
            return HttpResponse(headers={"Allow": ", ".join([*methods, "OPTIONS"])})
        if request.method not in methods:
            return HttpResponseNotAllowed(methods)
        setup.handled.append(request.path)
        response = view(request, **parameters)
        if request.method == "HEAD":
            response.content = b""  # which Django leaves to the server, and this one to Django
        return response

    return answers


def _views(setup: Setup) -> dict[str, Any]:
    def boom(request: Any) -> Any:
        raise RuntimeError("boom")

    def slow(request: Any) -> Any:
        setup.entered.set()
        setup.released.wait(30)
        return HttpResponse("slow")

    def pieces(first: bytes, second: bytes) -> Iterator[bytes]:
        yield first
        setup.released.wait(30)
        yield second

    def stream(request: Any) -> Any:
        return StreamingHttpResponse(pieces(b"first\n", b"second\n"), content_type="text/plain")

    def sse(request: Any) -> Any:
        return StreamingHttpResponse(pieces(b"data: first\n\n", b"data: second\n\n"), content_type="text/event-stream")

    return {
        "plain": lambda request: HttpResponse("plain"),
        "item": _item,
        "limited": lambda request: HttpResponse("limited"),
        "hello": lambda request: HttpResponse("hello"),
        "own": lambda request: HttpResponse("own", status=202, headers={"X-Own": "yes"}),
        "login": _login,
        "upload": _upload,
        "boom": boom,
        "slow": slow,
        "stream": stream,
        "sse": sse,
    }


def _item(request: Any, id: int) -> Any:  # noqa: A002 - the parameter's name
    return HttpResponse(str(id))


def _login(request: Any) -> Any:
    if request.body == b"wrong":
        return HttpResponse("no", status=401)
    return HttpResponse("yes")


def _upload(request: Any) -> Any:
    count = 0
    while piece := request.read(65536):
        count += len(piece)
    return HttpResponse(str(count))
