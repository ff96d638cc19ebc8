"""The adapter for Django's request."""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.core.handlers.asgi import ASGIRequest
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import include, path, re_path
from django.utils.asyncio import async_unsafe
from django.utils.functional import SimpleLazyObject

from crestgate.http.client_address import TrustedProxies
from crestgate.integrations.django.request import DjangoRequest, principal_async, request_state_of
from crestgate.integrations.request import Identity
from crestgate.integrations.request_state import NAME
from integration.frameworks.apps.django_project import configure, urlconf

configure()
FACTORIES = [RequestFactory, AsyncRequestFactory]
both = pytest.mark.parametrize("factory", FACTORIES)


def adapt(native: Any) -> DjangoRequest:
    return DjangoRequest(native, Identity(TrustedProxies()))


def view(request: Any, **parameters: Any) -> None: ...


ROUTES = urlconf(
    [
        path("item/<int:id>", view),
        path("<slug:shop>/", include([path("<path:rest>/end", view), re_path(r"^(?P<year>[0-9]{4})/$", view)])),
        re_path(r"^old/(\w+)$", view),
        path("", view),
    ]
)


@both
@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/item/7", "/item/{id}"),
        ("/books/a/b/end", "/{shop}/{rest}/end"),
        ("/books/1999/", "/{shop}/(?P<year>[0-9]{4})/$"),
        ("/old/page", r"/old/(\w+)$"),
        ("/", "/"),
        ("/item/seven", None),
    ],
)
def test_route_is_written_as_in_other_frameworks(factory: Any, path: str, route: str | None) -> None:
    native = factory().get(path)
    native.urlconf = ROUTES
    assert adapt(native).route == route
    assert native.resolver_match is None  # which only Django knows


def test_route_includes_the_mount_path() -> None:
    native = RequestFactory(SCRIPT_NAME="/shop").get("/shop/item/7")
    native.path_info, native.urlconf = "/item/7", ROUTES
    assert adapt(native).route == "/shop/item/{id}"


@both
def test_headers_are_looked_up_by_name(factory: Any) -> None:
    native = factory().post("/", b"abc", content_type="text/plain", headers={"X-Api-Key": "secret", "Origin": "a.b"})
    request = adapt(native)
    assert (request.api_key, request.headers["origin"]) == ("secret", "a.b")
    assert (request.headers["Content-Type"], request.headers["content-length"]) == ("text/plain", "3")
    assert request.method == "POST"


@both
def test_other_attributes_are_those_of_django(factory: Any) -> None:
    request = adapt(factory().get("/a?b=c"))
    assert (request.GET["b"], request.META["QUERY_STRING"], request.get_full_path()) == ("c", "b=c", "/a?b=c")


def test_path_is_percent_encoded() -> None:
    on_loop = ASGIRequest({"type": "http", "method": "GET", "path": "/café/%25?", "headers": []}, BytesIO())
    for native in (RequestFactory().get("/caf%C3%A9/%2525%3F"), on_loop):
        assert adapt(native).path == "/caf%C3%A9/%2525%3F"


def test_peer_is_the_remote_address() -> None:
    assert adapt(RequestFactory(REMOTE_ADDR="192.0.2.1").get("/")).address == "192.0.2.1"
    assert adapt(RequestFactory(REMOTE_ADDR="").get("/")).address is None


def test_request_state_is_shared_between_layers() -> None:
    sync, on_loop = RequestFactory().get("/"), AsyncRequestFactory().get("/")
    assert request_state_of(sync) is request_state_of(sync) is sync.environ[NAME]
    assert request_state_of(on_loop) is request_state_of(on_loop) is on_loop.scope[NAME]


class User:
    def __init__(self, pk: Any, known: bool = True) -> None:
        self.pk = pk
        self.is_authenticated = known


@pytest.mark.parametrize(
    ("user", "principal"),
    [(User(7), "7"), (User("a-b"), "a-b"), (User(None), None), (User(None, False), None), (None, None)],
)
def test_principal_is_the_logged_in_user(user: Any, principal: str | None) -> None:
    native = RequestFactory().get("/")
    assert adapt(native).user_id is None
    native.user = user
    assert adapt(native).user_id == principal
    assert asyncio.run(principal_async(adapt(native))) == principal


def lazily(loaded: list[str]) -> Any:
    def load() -> User:
        loaded.append("loaded")
        return User(7)

    return SimpleLazyObject(async_unsafe("a database")(load))


def test_user_is_loaded_lazily_and_never_on_the_loop() -> None:
    loaded: list[str] = []
    native = AsyncRequestFactory().get("/")
    native.user = lazily(loaded)
    request = adapt(native)
    assert request.address == "127.0.0.1"
    assert loaded == []

    async def ask() -> tuple[Any, Any]:
        try:
            on_loop = request.principal
        except SynchronousOnlyOperation:
            on_loop = "refused"
        return on_loop, await principal_async(request)

    assert asyncio.run(ask()) == ("refused", "7")
    assert loaded == ["loaded"]


def test_async_user_is_awaited() -> None:
    native = AsyncRequestFactory().get("/")
    native.user = lazily([])

    async def auser() -> User:
        return User(8)

    native.auser = auser
    assert asyncio.run(principal_async(adapt(native))) == "8"
