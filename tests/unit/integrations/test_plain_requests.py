"""The base class of requests, and what it delegates to the framework."""

from __future__ import annotations

import pytest

from crestgate.http.client_address import TrustedProxies
from crestgate.integrations import Response
from crestgate.integrations.request import HeaderMap, Identity, Request
from unit.integrations.plain import CLIENT, plain


def test_headers_are_case_insensitive() -> None:
    headers = HeaderMap([(b"Content-Type", b"text/plain"), (b"x-tenant", b"blue")])
    assert headers["content-type"] == headers["CONTENT-TYPE"] == "text/plain"
    assert "X-Tenant" in headers
    assert headers.get("X-Other") is None
    assert dict(headers) == {"content-type": "text/plain", "x-tenant": "blue"}
    assert len(headers) == 2
    with pytest.raises(KeyError):
        headers["x-other"]


def test_several_headers_of_one_name_are_joined() -> None:
    headers = HeaderMap([(b"Accept", b"a"), (b"host", b"h"), (b"accept", b"b")])
    assert headers["accept"] == "a, b"
    assert list(headers) == ["accept", "host"]
    assert len(headers) == 2


def test_headers_may_have_any_bytes() -> None:
    headers = HeaderMap([(b"x-name", b"gr\xf6\xdfer")])
    assert headers["x-name"] == "größer"
    assert headers.get("größe\N{SNOWMAN}") is None


def test_no_headers() -> None:
    assert (len(HeaderMap([])), list(HeaderMap([])), HeaderMap([]).get("a")) == (0, [], None)


def test_other_attributes_are_those_of_the_framework() -> None:
    request = plain("/x", session={"cart": 3})
    assert request.session == {"cart": 3}
    assert request.template is None
    with pytest.raises(AttributeError, match="basket"):
        _ = request.basket
    with pytest.raises(AttributeError, match="_private"):
        _ = request._private


def test_mapping_request_of_a_framework_is_a_mapping() -> None:
    request = Request({"type": "http", "app": "an application"}, Identity(TrustedProxies()))
    assert request["app"] == "an application"
    with pytest.raises(KeyError):
        request["user"]


def test_minimal_framework_adapter() -> None:
    bare = Request({}, Identity(TrustedProxies()))
    for name in ("method", "path", "raw_headers", "peer", "headers"):
        with pytest.raises(NotImplementedError):
            getattr(bare, name)
    assert (bare.route, bare.principal, bare.user_id, bare.tier, bare.client_id) == (None,) * 5


def test_address_is_computed_once() -> None:
    request = plain(headers={"X-Forwarded-For": CLIENT}, peer="10.0.0.1", identity=Identity(TrustedProxies(1)))
    assert request.address == CLIENT
    request.native.peer = "10.0.0.2"
    request.native.raw_headers = []
    assert request.address == CLIENT


def test_missing_address_is_cached() -> None:
    request = plain(peer=None)
    assert request.address is None
    request.native.peer = CLIENT
    assert request.address is None


def test_identity_options_of_the_layer_apply() -> None:
    identity = Identity(
        TrustedProxies(),
        user=lambda request: request.headers["x-user"],
        tier=lambda _: "gold",
        client=lambda _: 7,
        api_key_header="X-Secret",
    )
    request = plain(
        headers={"X-User": "alice", "X-Secret": "s", "X-API-Key": "other"}, logged_in="bob", identity=identity
    )
    assert (request.user_id, request.tier, request.client_id, request.api_key) == ("alice", "gold", "7", "s")


@pytest.mark.parametrize("value", [None, ""])
def test_empty_identity_is_none(value: object) -> None:
    identity = Identity(TrustedProxies(), user=lambda _: value, tier=lambda _: value, client=lambda _: value)
    request = plain(headers={"X-API-Key": ""}, logged_in="bob", identity=identity)
    assert (request.user_id, request.tier, request.client_id, request.api_key) == (None, None, None, None)


def test_user_id_zero_is_a_user() -> None:
    assert plain(identity=Identity(TrustedProxies(), user=lambda _: 0)).user_id == "0"


def test_prefetched_values_are_not_computed_again() -> None:
    def never(_: object) -> object:
        raise AssertionError("asked again")

    request = plain()
    request.results[never] = "alice"
    assert request.call(never) == "alice"


def test_coroutine_in_a_sync_request_is_an_error() -> None:
    async def user(_: object) -> str:
        return "alice"

    request = plain(identity=Identity(TrustedProxies(), user=lambda request: user(request)))
    with pytest.raises(TypeError, match=r"returned a coroutine.*: write it as `async def`, or return its result"):
        _ = request.user_id


def test_response_has_status_and_headers() -> None:
    response = Response(401, [(b"WWW-Authenticate", b"Basic")])
    assert (response.status, response.status_code, response.headers["www-authenticate"]) == (401, 401, "Basic")
    assert not Response(200).headers
