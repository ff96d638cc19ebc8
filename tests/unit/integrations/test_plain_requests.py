"""A request as limits see it, and what it leaves to its framework."""

from __future__ import annotations

import pytest

from crestgate.http.client_address import TrustedProxies
from crestgate.integrations import Response
from crestgate.integrations.request import Headers, Identity, Request
from unit.integrations.plain import CLIENT, plain


def test_headers_are_found_in_any_case() -> None:
    headers = Headers([(b"Content-Type", b"text/plain"), (b"x-tenant", b"blue")])
    assert headers["content-type"] == headers["CONTENT-TYPE"] == "text/plain"
    assert "X-Tenant" in headers
    assert headers.get("X-Other") is None
    assert dict(headers) == {"content-type": "text/plain", "x-tenant": "blue"}
    assert len(headers) == 2
    with pytest.raises(KeyError):
        headers["x-other"]


def test_several_headers_of_one_name_are_joined() -> None:
    headers = Headers([(b"Accept", b"a"), (b"host", b"h"), (b"accept", b"b")])
    assert headers["accept"] == "a, b"
    assert list(headers) == ["accept", "host"]
    assert len(headers) == 2


def test_headers_may_have_any_bytes() -> None:
    headers = Headers([(b"x-name", b"gr\xf6\xdfer")])
    assert headers["x-name"] == "größer"
    assert headers.get("größe\N{SNOWMAN}") is None


def test_no_headers() -> None:
    assert (len(Headers([])), list(Headers([])), Headers([]).get("a")) == (0, [], None)


def test_everything_else_is_the_frameworks() -> None:
    request = plain("/x", session={"cart": 3})
    assert request.session == {"cart": 3}
    assert request.template is None
    with pytest.raises(AttributeError, match="basket"):
        _ = request.basket
    with pytest.raises(AttributeError, match="_private"):
        _ = request._private


def test_a_framework_whose_request_is_a_mapping_is_one_here_too() -> None:
    request = Request({"type": "http", "app": "an application"}, Identity(TrustedProxies()))
    assert request["app"] == "an application"
    with pytest.raises(KeyError):
        request["user"]


def test_a_framework_has_to_tell_the_least() -> None:
    bare = Request({}, Identity(TrustedProxies()))
    for name in ("method", "path", "raw_headers", "peer", "headers"):
        with pytest.raises(NotImplementedError):
            getattr(bare, name)
    assert (bare.route, bare.principal, bare.user_id, bare.tier, bare.client_id) == (None,) * 5


def test_the_address_is_found_once() -> None:
    request = plain(headers={"X-Forwarded-For": CLIENT}, peer="10.0.0.1", identity=Identity(TrustedProxies(1)))
    assert request.address == CLIENT
    request.native.peer = "10.0.0.2"
    request.native.raw_headers = []
    assert request.address == CLIENT


def test_that_there_is_no_address_is_remembered_too() -> None:
    request = plain(peer=None)
    assert request.address is None
    request.native.peer = CLIENT
    assert request.address is None


def test_who_asks_is_what_the_layer_was_told() -> None:
    told = Identity(
        TrustedProxies(),
        user=lambda request: request.headers["x-user"],
        tier=lambda _: "gold",
        client=lambda _: 7,
        api_key_header="X-Secret",
    )
    request = plain(headers={"X-User": "alice", "X-Secret": "s", "X-API-Key": "other"}, logged_in="bob", identity=told)
    assert (request.user_id, request.tier, request.client_id, request.api_key) == ("alice", "gold", "7", "s")


@pytest.mark.parametrize("said", [None, ""])
def test_nobody_is_nobody(said: object) -> None:
    told = Identity(TrustedProxies(), user=lambda _: said, tier=lambda _: said, client=lambda _: said)
    request = plain(headers={"X-API-Key": ""}, logged_in="bob", identity=told)
    assert (request.user_id, request.tier, request.client_id, request.api_key) == (None, None, None, None)


def test_the_user_number_zero_is_a_user() -> None:
    assert plain(identity=Identity(TrustedProxies(), user=lambda _: 0)).user_id == "0"


def test_what_was_asked_ahead_is_not_asked_again() -> None:
    def never(_: object) -> object:
        raise AssertionError("asked again")

    request = plain()
    request.results[never] = "alice"
    assert request.call(never) == "alice"


def test_a_coroutine_that_nobody_waited_for_is_an_error() -> None:
    async def user(_: object) -> str:
        return "alice"

    request = plain(identity=Identity(TrustedProxies(), user=lambda request: user(request)))
    with pytest.raises(TypeError, match=r"returned a coroutine.*: write it as `async def`, or return its answer"):
        _ = request.user_id


def test_a_response_says_its_status_and_headers() -> None:
    response = Response(401, [(b"WWW-Authenticate", b"Basic")])
    assert (response.status, response.status_code, response.headers["www-authenticate"]) == (401, 401, "Basic")
    assert not Response(200).headers
