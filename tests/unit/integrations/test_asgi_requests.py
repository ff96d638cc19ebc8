"""The user and route of an ASGI scope."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.authentication import SimpleUser, UnauthenticatedUser
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute

from crestgate.http.client_address import TrustedProxies
from crestgate.integrations.asgi.request import AsgiRequest
from crestgate.integrations.asgi.routes import route_name, template_of
from crestgate.integrations.request import Identity


def request(**scope: Any) -> AsgiRequest:
    made = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [(b"host", b"here")],
        "client": ("::1", 1),
        **scope,
    }
    return AsgiRequest(made, Identity(TrustedProxies()))


class Unready:
    is_authenticated = True

    @property
    def identity(self) -> str:
        raise NotImplementedError

    display_name = "ada"


@pytest.mark.parametrize(
    ("user", "name"),
    [
        (SimpleUser("ada"), "ada"),
        (UnauthenticatedUser(), None),
        (Unready(), "ada"),
        (SimpleNamespace(id=42), "42"),
        (SimpleNamespace(identity="", username="ada"), "ada"),
        (SimpleNamespace(is_authenticated=False, id=42), None),
        ({"id": 42}, "42"),
        ({}, None),
        ("ada", "ada"),
        (42, "42"),
        (None, None),
        (object(), None),
    ],
)
def test_principal_comes_from_the_framework(user: Any, name: str | None) -> None:
    assert request(user=user).principal == name
    assert request().principal is None


def test_other_attributes_are_those_of_the_framework() -> None:
    one = request(state={"tenant": "acme"}, query_string=b"a=1", scheme="http", server=("here", 80))
    assert (one.client.host, one.state.tenant, one.query_params["a"]) == ("::1", "acme", "1")
    assert (one["path"], one.peer, one.address) == ("/", "::1", "::1")
    assert request(client=None).peer is None


async def endpoint(_: Any) -> PlainTextResponse:
    return PlainTextResponse("")


def applications() -> tuple[Starlette, FastAPI]:
    deep = [Route("/item/{id:int}", endpoint), Mount("/in/{place}", routes=[Route("/{leaf}", endpoint)])]
    starlette = Starlette(
        routes=[
            *deep,
            Route("/item/{id:int}", endpoint, methods=["DELETE"]),
            Mount("/shop/{shop}", app=Router(deep)),
            Mount("/static", app=Router()),
            Host("api.here", app=Router([Route("/host/{id}", endpoint)])),
            WebSocketRoute("/talk/{room}", endpoint),
        ]
    )
    fastapi, router, outer = FastAPI(), APIRouter(prefix="/v1"), APIRouter(prefix="/outer")
    router.get("/item/{number}")(lambda number: number)
    outer.include_router(router)
    fastapi.include_router(router)
    fastapi.include_router(outer, prefix="/api")
    fastapi.get("/plain/{rest:path}")(lambda rest: rest)
    fastapi.mount("/sub", starlette)
    return starlette, fastapi


STARLETTE, FASTAPI = applications()


@pytest.mark.parametrize(
    ("app", "path", "template"),
    [
        (STARLETTE, "/item/1", "/item/{id}"),
        (STARLETTE, "/item/x", None),
        (STARLETTE, "/in/here/now", "/in/{place}/{leaf}"),
        (STARLETTE, "/shop/a/item/1", "/shop/{shop}/item/{id}"),
        (STARLETTE, "/shop/a/in/here/now", "/shop/{shop}/in/{place}/{leaf}"),
        (STARLETTE, "/static/a/b.css", "/static/{path}"),
        (STARLETTE, "/host/1", None),
        (STARLETTE, "/nowhere", None),
        (FASTAPI, "/v1/item/1", "/v1/item/{number}"),
        (FASTAPI, "/api/outer/v1/item/1", "/api/outer/v1/item/{number}"),
        (FASTAPI, "/plain/a/b", "/plain/{rest}"),
        (FASTAPI, "/sub/item/7", "/sub/item/{id}"),
        (FASTAPI, "/sub/shop/a/item/7", "/sub/shop/{shop}/item/{id}"),
        (None, "/item/1", None),
        (object(), "/item/1", None),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_route_before_routing_is_matched(app: Any, path: str, template: str | None, method: str) -> None:
    one = request(path=path, app=app, method=method)
    before = dict(one.native)
    assert one.route == template
    assert one.native == before  # the scope itself is unchanged


def test_route_with_hosts_websockets_and_root_paths() -> None:
    assert request(path="/host/1", app=STARLETTE, headers=[(b"host", b"api.here")]).route == "/host/{id}"
    assert request(type="websocket", path="/talk/a", app=STARLETTE).route == "/talk/{room}"
    assert request(path="/root/item/1", root_path="/root", app=STARLETTE).route == "/root/item/{id}"


@pytest.mark.parametrize(
    ("scope", "template"),
    [
        ({"path_template": "/item/{id}"}, "/item/{id}"),  # as Litestar has it
        ({"route": SimpleNamespace(path_format="/item/{id}", methods={"PUT", "GET"})}, "GET,PUT /item/{id}"),
        (
            {
                "route": SimpleNamespace(path_format="/{id}", methods={"GET"}, param_convertors={"id": None}),
                "root_path": "/shop/shop/7/",
                "path_params": {"shop": "shop", "number": 7, "id": "shop"},
            },
            "GET /shop/{shop}/{number}/{id}",
        ),
    ],
)
def test_route_after_routing_comes_from_the_scope(scope: dict[str, Any], template: str) -> None:
    assert route_name(scope) == template
    assert template_of({}) is None
    assert route_name({}) is None
