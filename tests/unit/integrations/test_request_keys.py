"""Keys of requests: every resolver, and that callers cannot evade it."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crestgate.core.bounds import MAX_KEY_BYTES
from crestgate.errors import ConfigError
from crestgate.http.client_address import TrustedProxies
from crestgate.integrations import keys
from crestgate.integrations.keys import bounded_key, build_key_maker, with_one_argument
from crestgate.integrations.request import Identity
from unit.integrations.plain import CLIENT, plain

SIGNATURES = Identity(TrustedProxies(), user=lambda _: 42, client=lambda _: "acme")
KEY_DIGEST = "sha256:" + hashlib.sha256(b"secret").hexdigest()

# A key option, and the key it makes of the same request.
NAMED: dict[str, str] = {
    "ip": "ip:203.0.113.9",
    "address": "ip:203.0.113.9",
    "user": "user:42",
    "principal": "user:42",
    "apikey": f"apikey:{KEY_DIGEST}",
    "api_key": f"apikey:{KEY_DIGEST}",
    "api-key": f"apikey:{KEY_DIGEST}",
    "client": "client:acme",
    "route": "route:/item/{id}",
    "header:X-Tenant": "header:x-tenant:blue",
    "Header: x-tenant ": "header:x-tenant:blue",
    "USER": "user:42",
    " user ": "user:42",
    "user|route": "user:42|route:/item/{id}",
    "route|user": "route:/item/{id}|user:42",
    " user | route ": "user:42|route:/item/{id}",
    "user|ip|header:x-tenant": "user:42|ip:203.0.113.9|header:x-tenant:blue",
    "user|user": "user:42|user:42",
}


@pytest.mark.parametrize("key", NAMED)
def test_named_resolver(key: str) -> None:
    request = plain(
        "/item/1", template="/item/{id}", identity=SIGNATURES, headers={"X-Tenant": "blue", "X-API-Key": "secret"}
    )
    assert build_key_maker(key)(request) == NAMED[key]


def test_api_key_is_hashed() -> None:
    made = build_key_maker("apikey|route")(plain("/x", headers={"X-API-Key": "secret"}))
    assert "secret" not in made
    assert made == f"apikey:{KEY_DIGEST}|route:/x"


def test_unknown_route_is_the_path() -> None:
    assert build_key_maker("route")(plain("/item/1")) == "route:/item/1"


@pytest.mark.parametrize("path", ["/item//1", "/item/./1", "/x/../item/1", "/item/%31", "/item/1/", "/item/1;x=2"])
def test_spellings_of_a_path_have_one_key(path: str) -> None:
    assert build_key_maker("route")(plain(path)) == "route:/item/1"


def test_default_user_is_the_principal_of_the_framework() -> None:
    assert build_key_maker("user")(plain(logged_in="alice")) == "user:alice"
    assert build_key_maker("user")(plain(logged_in="alice", identity=SIGNATURES)) == "user:42"


def test_ipv6_caller_is_a_network() -> None:
    made = {
        build_key_maker("ip")(plain(peer=peer)) for peer in ("2001:db8::1", "2001:db8:0:0:ffff::2", "2001:DB8::3%eth0")
    }
    assert made == {"ip:2001:db8::/64"}
    assert build_key_maker("ip")(plain(peer="::ffff:203.0.113.9")) == f"ip:{CLIENT}"


@pytest.mark.parametrize("key", ["apikey", "header:X-API-Key"])
def test_repeated_header_makes_no_new_key(key: str) -> None:
    def made(*values: bytes) -> str:
        request = plain()
        request.native.raw_headers = [(b"x-api-key", value) for value in values]
        return build_key_maker(key)(request)

    assert made(b"secret", b"1") == made(b"secret", b"2") == made(b"3", b"secret")
    assert made(b"secret", b"secret") == made(b"", b"secret") == made(b"secret") != made(b"secret", b"1")
    assert made(b"", b"") == f"ip:{CLIENT}"


@pytest.mark.parametrize("key", ["user", "apikey", "client", "header:x-tenant"])
def test_missing_value_falls_back_to_the_address(key: str) -> None:
    assert build_key_maker(key)(plain()) == f"ip:{CLIENT}"
    assert build_key_maker(key)(plain(headers={"X-Tenant": "", "X-API-Key": ""}, logged_in=None)) == f"ip:{CLIENT}"


@pytest.mark.parametrize("value", [None, ""])
def test_empty_result_of_a_callable_falls_back_to_the_address(value: str | None) -> None:
    assert build_key_maker(lambda _: value)(plain()) == f"ip:{CLIENT}"


def test_missing_part_is_replaced_by_the_address() -> None:
    maker = build_key_maker("user|route")
    assert maker(plain("/x")) == f"ip:{CLIENT}|route:/x"
    assert maker(plain("/x", logged_in="alice")) == "user:alice|route:/x"
    assert maker(plain("/x", peer="198.51.100.1")) != maker(plain("/x"))


def test_request_without_an_address_is_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_warned", set())
    with caplog.at_level(logging.WARNING, "crestgate"):
        made = {build_key_maker("ip")(plain(peer=peer)) for peer in (None, "")}
    assert made == {"ip:unknown"}
    assert len(caplog.records) == 1
    assert "trusted_proxies= ('unix' for a Unix socket)" in caplog.text


# -- two callers, two keys --------------------------------------------------------------------------------------------


def test_separator_is_escaped_in_parts() -> None:
    maker = build_key_maker("header:a|header:b")
    one = maker(plain(headers={"A": "x|header:b:y", "B": "z"}))
    other = maker(plain(headers={"A": "x", "B": "y|header:b:z"}))
    assert one != other
    assert one == "header:a:x%7Cheader:b:y|header:b:z"
    assert maker(plain(headers={"A": "x%7C", "B": "z"})) != maker(plain(headers={"A": "x|", "B": "z"}))


def test_one_part_cannot_imitate_several() -> None:
    alone = build_key_maker("header:a")(plain(headers={"A": "x|user:alice"}))
    several = build_key_maker("header:a|user")(plain(headers={"A": "x"}, logged_in="alice"))
    assert alone != several


def test_single_callable_cannot_imitate_several() -> None:
    alone = build_key_maker(lambda request: request.headers["a"])(plain(headers={"A": "x|route:/login"}))
    assert alone == "x%7Croute:/login"


pieces = st.none() | st.text("a|%:1", max_size=4)


@given(st.lists(pieces, min_size=1, max_size=3), st.lists(pieces, min_size=1, max_size=3))
def test_different_values_make_different_keys(one: list[str | None], other: list[str | None]) -> None:
    def made(values: list[str | None]) -> str:
        def value_at(index: int) -> Any:
            return lambda _: values[index]

        return build_key_maker([value_at(index) for index in range(len(values))])(plain())

    value, also = ([value or None for value in values] for values in (one, other))
    if value != also:
        assert made(one) != made(other), "an address is none of these values"


def test_too_long_key_becomes_a_digest() -> None:
    maker = build_key_maker("header:a")
    long, longer = "x" * 2000, "x" * 2001
    made = maker(plain(headers={"A": long}))
    assert made == "sha256:" + hashlib.sha256(f"header:a:{long}".encode()).hexdigest()
    assert made != maker(plain(headers={"A": longer}))


def test_key_length_is_measured_in_bytes() -> None:
    assert bounded_key("ä" * (MAX_KEY_BYTES // 2)) == "ä" * (MAX_KEY_BYTES // 2)
    assert bounded_key("ä" * (MAX_KEY_BYTES // 2) + "x").startswith("sha256:")
    assert bounded_key("x" * MAX_KEY_BYTES) == "x" * MAX_KEY_BYTES
    assert bounded_key("\ud800" * MAX_KEY_BYTES).startswith("sha256:")


# -- callables --------------------------------------------------------------------------------------------------------


def test_callable_gets_the_request() -> None:
    assert build_key_maker(lambda request: f"path:{request.path}")(plain("/x")) == "path:/x"


def test_callable_without_parameters() -> None:
    assert build_key_maker(lambda: "everybody")(plain()) == "everybody"


def test_number_is_a_key() -> None:
    assert build_key_maker(lambda: 42)(plain()) == "42"


def test_names_and_callables_together() -> None:
    maker = build_key_maker(["user", lambda request: f"shard:{len(request.path)}", "route"])
    assert maker(plain("/abc", logged_in="alice")) == "user:alice|shard:4|route:/abc"
    assert len(maker.callables) == 1


@pytest.mark.parametrize("made", [1.5, b"user", ["user"], object()])
def test_invalid_result_of_a_callable_is_an_error(made: object) -> None:
    with pytest.raises(TypeError, match=r"must return text such as 'user:42', or None, not"):
        build_key_maker(lambda: made)(plain())


def _default(request: object = "unset") -> object:
    return request


def _nothing() -> object:
    return "nothing"


def _optional_keyword(*, tenant: str = "blue") -> object:
    return tenant


class _Callable:
    def __call__(self, request: object) -> object:
        return request

    def method(self) -> object:
        return "method"


def _takes() -> Iterator[tuple[Any, Any]]:
    yield lambda request: request, "request"
    yield _default, "request"
    yield _nothing, "nothing"
    yield _optional_keyword, "blue"
    yield _Callable(), "request"
    yield _Callable().method, "method"
    yield functools.partial(lambda name, request: (name, request), "n"), ("n", "request")
    yield functools.partial(lambda name: name, "n"), "n"
    yield lambda *args: args, ("request",)
    yield str, "request"
    yield "REQUEST".lower, "request"


@pytest.mark.parametrize(("function", "value_at"), list(_takes()))
def test_callable_signatures(function: Any, value_at: object) -> None:
    assert with_one_argument(function)("request") == value_at


# -- invalid keys -----------------------------------------------------------------------------------------------------

RAISED = "one of ip, user, apikey, client, route, header:NAME"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("usr", f"there is no key 'usr': write {RAISED}, several joined by '|', or give a callable"),
        ("user|", f"there is no key '': write {RAISED}, several joined by '|', or give a callable"),
        ("", f"there is no key '': write {RAISED}, several joined by '|', or give a callable"),
        ("header", f"there is no key 'header': write {RAISED}, several joined by '|', or give a callable"),
        ("header:", "key 'header:' names no header: write one such as header:X-Tenant"),
        ("user|header: ", "key 'header:' names no header: write one such as header:X-Tenant"),
        (["user", "usr"], f"there is no key 'usr': write {RAISED}, several joined by '|', or give a callable"),
        ([], "key is empty: leave it out to count by the client's address"),
        (5, f"key must be {RAISED}, a callable or a list of them, not 5"),
        (None, f"key must be {RAISED}, a callable or a list of them, not None"),
        (["user", 5], f"key must be made of {RAISED} and callables, not 5"),
    ],
)
def test_invalid_keys_are_refused(key: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build_key_maker(key)
    assert str(raised.value) == message
