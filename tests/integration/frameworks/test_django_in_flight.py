"""In-flight limits of Django views: a slot is free when the response has ended, also if Django does not send it.

Time stands still, so no slot is ever freed by its time to live.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.urls import path

from crestgate import Limiter
from crestgate.integrations.django import limit
from integration.frameworks.apps.django_project import asgi_application, configure, wsgi_application
from integration.frameworks.django_sites import KINDS, Site, limiter, view_of
from unit.integrations.wsgi_calls import environ_for

configure()
both = pytest.mark.parametrize("kind", KINDS)
ONE = "1 concurrent"
SCOPE = {"type": "http", "method": "GET", "path": "/a", "headers": [], "query_string": b"", "client": ("127.0.0.1", 1)}


def limited(shared: Limiter, view: Any) -> list[Any]:
    return [path("a", limit(ONE, limiter=shared, scope="a")(view))]


def free(shared: Limiter) -> int:
    return shared.peek("ip:127.0.0.1|route:a", ONE).remaining


def sent_by(app: Any) -> Any:
    """The body that a WSGI server gets."""
    return app(environ_for("/a", REMOTE_ADDR="127.0.0.1"), lambda *_: lambda _: None)


@both
def test_slot_is_free_after_responses_and_errors(kind: str) -> None:
    def handler(request: Any) -> HttpResponse:
        assert free(shared) == 0
        return HttpResponse("yes", status=200 if "ok" in request.GET else 1 // 0)

    shared = limiter()
    with Site(kind, limited(shared, view_of(kind, handler))) as site:
        assert site.statuses("/a?ok", "/a?ok", "/a", "/a") == [200, 200, 500, 500]
    assert free(shared) == 1


@both
def test_slot_is_free_if_another_middleware_replaces_the_response(kind: str) -> None:
    shared = limiter()
    around = ["django.middleware.http.ConditionalGetMiddleware"]
    with Site(kind, limited(shared, view_of(kind, lambda request: HttpResponse("yes"))), around=around) as site:
        tag = site.get("/a").headers["etag"]
        assert site.get("/a", headers={"If-None-Match": tag}).status_code == 304
        assert site.get("/a").status_code == 200


def test_sync_stream_holds_until_it_is_closed() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"1"
        yield b"2"

    shared = limiter()
    app = wsgi_application(limited(shared, lambda request: StreamingHttpResponse(chunks())), None)
    body = sent_by(app)
    assert next(iter(body)) == b"1"
    assert free(shared) == 0
    body.close()
    assert free(shared) == 1


@pytest.mark.parametrize("how", ["ends", "fails", "disconnects"])
def test_async_stream_holds_until_it_ends(how: str) -> None:
    shared = limiter()
    started, end, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"1"
        await end.wait()
        if how == "fails":
            raise ZeroDivisionError
        yield b"2"

    async def view(request: Any) -> StreamingHttpResponse:
        return StreamingHttpResponse(chunks())

    requests = [{"type": "http.request", "body": b""}]

    async def receive() -> dict[str, Any]:
        if requests:
            return requests.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message.get("body"):
            started.set()

    async def run() -> None:
        app = asgi_application(limited(shared, view), None)
        task = asyncio.get_running_loop().create_task(app(SCOPE, receive, send))
        await started.wait()
        assert free(shared) == 0
        (gone if how == "disconnects" else end).set()
        await asyncio.wait([task])
        assert isinstance(task.exception(), ZeroDivisionError) == (how == "fails")
        assert free(shared) == 1

    asyncio.run(asyncio.wait_for(run(), 60))


def test_async_view_under_wsgi_holds_beyond_its_event_loop() -> None:
    async def view(request: Any) -> StreamingHttpResponse:
        return StreamingHttpResponse(iter([b"1", b"2"]))

    shared = limiter()
    body = sent_by(wsgi_application(limited(shared, view), None))
    assert free(shared) == 0
    assert b"".join(body) == b"12"
    body.close()
    assert free(shared) == 1


def test_file_is_sent_and_its_slot_is_free(tmp_path: Any) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"body")
    shared = limiter()
    with Site("wsgi", limited(shared, lambda request: FileResponse(file.open("rb")))) as site:
        assert [site.get("/a").content for _ in range(2)] == [b"body", b"body"]
    assert free(shared) == 1


def test_slots_of_middleware_and_view_are_both_free() -> None:
    shared = limiter()
    settings = {"LIMITER": shared, "LIMITS": ONE}
    with Site("wsgi", limited(shared, lambda request: HttpResponse("yes")), settings) as site:
        assert site.statuses("/a", "/a") == [200, 200]
    assert (free(shared), shared.peek("ip:127.0.0.1", ONE).remaining) == (1, 1)
