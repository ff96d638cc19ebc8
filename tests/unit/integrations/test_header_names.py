"""One caller is one key in every integration, however the header is spelled."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import flask
import pytest
from django.http import HttpRequest

from crestgate import Limiter
from crestgate.http.client_address import TrustedProxies
from crestgate.integrations.asgi.request import AsgiRequest
from crestgate.integrations.django.request import DjangoRequest
from crestgate.integrations.flask.request import FlaskRequest
from crestgate.integrations.grpc.calls import RpcRequest
from crestgate.integrations.keys import build_key_maker
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request import Identity, Request
from crestgate.integrations.wsgi import WsgiRequest
from integration.frameworks.apps.django_project import configure
from unit.integrations.plain import CLIENT, admits, layer_request, limiter_on

configure()
Make = Callable[[bytes, Identity], Request]
SPELLINGS = [b"secret ", b"secret\t\t", b"\tsecret", b"secret\xa0", b"secret\x0b", b" secret \r\n "]


def _environ(value: bytes) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/",
        "REMOTE_ADDR": CLIENT,
        "HTTP_X_API_KEY": value.decode("latin-1"),
        "wsgi.url_scheme": "http",
    }


def _asgi(value: bytes, identity: Identity) -> Request:
    scope = {"type": "http", "path": "/", "client": (CLIENT, 1), "headers": [(b"x-api-key", value)]}
    return AsgiRequest(scope, identity)


def _wsgi(value: bytes, identity: Identity) -> Request:
    return WsgiRequest(_environ(value), identity)


def _flask(value: bytes, identity: Identity) -> Request:
    return FlaskRequest(flask.Request(_environ(value)), identity)


def _django(value: bytes, identity: Identity) -> Request:
    native = HttpRequest()
    native.META = _environ(value)
    return DjangoRequest(native, identity)


def _grpc(value: bytes, identity: Identity) -> Request:
    native = SimpleNamespace(
        invocation_metadata=lambda: (("x-api-key", value.decode("latin-1")),), peer=lambda: f"ipv4:{CLIENT}:1"
    )
    return RpcRequest(native, identity, "/shop.Orders/List")


MAKERS: dict[str, Make] = {"asgi": _asgi, "wsgi": _wsgi, "flask": _flask, "django": _django, "grpc": _grpc}
"""FastAPI's limits read the request of ASGI."""


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("spelled", SPELLINGS, ids=repr)
def test_spelling_of_an_api_key_is_no_new_caller(make: Make, spelled: bytes) -> None:
    identity = Identity(TrustedProxies())
    for key in ("apikey", "header:X-API-Key"):
        assert build_key_maker(key)(make(spelled, identity)) == build_key_maker(key)(make(b"secret", identity))
    assert make(spelled, identity).api_key == "secret"


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_blank_api_key_is_none(make: Make) -> None:
    request = make(b" \t ", Identity(TrustedProxies()))
    assert request.api_key is None
    assert build_key_maker("apikey")(request) == f"ip:{CLIENT}"


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("spelled", SPELLINGS, ids=repr)
def test_names_that_callables_read_from_headers(make: Make, spelled: bytes) -> None:
    def read_header(request: Any) -> str:
        return str(request.headers["x-api-key"])

    identity = Identity(TrustedProxies(), user=read_header, tier=read_header, client=read_header)
    request = make(spelled, identity)
    assert (request.user_id, request.tier, request.client_id) == ("secret", "secret", "secret")
    assert build_key_maker(read_header)(request) == "secret"
    blank = make(b"\t", identity)
    assert (blank.user_id, blank.tier, blank.client_id) == (None, None, None)
    assert build_key_maker(read_header)(blank) == f"ip:{CLIENT}"


def test_text_of_a_callable_is_trimmed() -> None:
    identity = Identity(TrustedProxies(), user=lambda _: " 42\t")
    assert layer_request(LimitLayer(limiter_on(), "1/day", user=lambda _: " 42\t")).user_id == "42"
    assert build_key_maker(lambda _: "tenant\t")(_asgi(b"", identity)) == "tenant"
    assert build_key_maker(lambda _: " \t")(_asgi(b"", identity)) == f"ip:{CLIENT}"


def test_repeats_are_compared_without_blanks() -> None:
    scope = {"type": "http", "path": "/", "headers": [(b"x-api-key", b"secret"), (b"x-api-key", b"secret\t")]}
    assert AsgiRequest(scope, Identity(TrustedProxies())).api_key == "secret"


@pytest.mark.parametrize(
    ("key", "name", "spellings"),
    [
        ("header:Host", "host", ["example.com", "EXAMPLE.com.", "example.com:8000"]),
        ("header:Authorization", "authorization", ["Bearer abc", "bearer  abc", "BEARER abc\t"]),
    ],
)
def test_hosts_and_schemes_have_one_spelling(key: str, name: str, spellings: list[str]) -> None:
    layer: LimitLayer[Limiter] = LimitLayer(limiter_on(), "2/day", key=key)
    values = iter(spellings)
    assert admits(layer, 3, lambda: layer_request(layer, headers={name: next(values)})) == 2


def test_method_in_small_letters_is_bound_by_the_rule() -> None:
    layer: LimitLayer[Limiter] = LimitLayer(limiter_on(), "2/day", methods=["POST"])
    methods = iter(["POST", "post", "Post"])
    assert admits(layer, 3, lambda: layer_request(layer, method=next(methods))) == 2
