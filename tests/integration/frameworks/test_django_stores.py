"""Django's limits with their counters in Redis: shared by threads and loops, and no loop ever waits in a call."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from django.http import HttpResponse
from django.urls import path

from crestgate.integrations.django import limit
from integration.frameworks.apps.django_project import asgi_application
from integration.frameworks.django_sites import KINDS, Site, remaining, view_of
from servers.proxy import CuttingProxy
from servers.redis import RedisServer

both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


def text(kind: str) -> Any:
    return view_of(kind, lambda request: HttpResponse("yes"))


def test_threads_and_event_loops_share_counters(redis_server: Any) -> None:
    crestgate = {"LIMITER": redis_server.url, "LIMITS": "5/hour", "KEY": "header:X-Test"}
    headers = {"X-Test": uuid.uuid4().hex}
    with (
        Site("wsgi", [path("a", text("wsgi"))], crestgate) as one,
        Site("asgi", [path("a", text("asgi"))], crestgate) as two,
    ):
        left = [remaining(site.get("/a", headers=headers)) for site in (one, two, one, two)]
    assert left == [[4], [3], [2], [1]]


@both
def test_both_kinds_of_view_are_limited_with_few_connections(kind: str, server: RedisServer) -> None:
    limited = limit("40/hour", limiter=server.url, scope="both")
    with Site(kind, [path("sync", limited(text("wsgi"))), path("async", limited(text("asgi")))]) as site:
        left = [remaining(site.get(name))[0] for _ in range(20) for name in ("/sync", "/async")]
    assert left == list(range(39, -1, -1))
    assert len(server.cli("CLIENT", "LIST").splitlines()) < 15


def test_hanging_store_does_not_block_the_event_loop(server: RedisServer) -> None:
    with CuttingProxy(server.port) as proxy:
        crestgate = {"LIMITER": f"redis://127.0.0.1:{proxy.port}?timeout_ms=5000", "LIMITS": "5/hour"}
        asgi = httpx.ASGITransport(app=asgi_application([path("a", text("asgi"))], crestgate))

        async def check_while_blocked() -> tuple[int, int, list[int]]:
            async with httpx.AsyncClient(transport=asgi, base_url="http://site") as client:
                first = (await client.get("/a")).status_code
                proxy.hang()
                pending = asyncio.create_task(client.get("/a"))
                turns = 0
                while turns < 20:
                    await asyncio.sleep(0.005)
                    turns += 1
                waiting = pending.done()
                proxy.pass_all()
                return first, (await pending).status_code, [turns, waiting]

        assert asyncio.run(check_while_blocked()) == (200, 200, [20, False])


@both
def test_unavailable_store_is_not_an_application_error(kind: str) -> None:
    crestgate = {"LIMITER": "redis://127.0.0.1:1", "LIMITS": "1/hour"}
    with Site(kind, [path("a", text(kind))], crestgate) as site:
        assert site.statuses("/a", "/a") == [200, 200]
