"""Rules: parsing, validation errors, and unique keys."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.core.dimensions import DIMENSION_NAMES, IDENTIFIED
from crestgate.core.limit import Limit
from crestgate.errors import ValidationError
from crestgate.loader.fields import Problems
from crestgate.rules.address import subject_address
from crestgate.rules.rule import RULE_FIELDS, Rule

MINIMAL: dict[str, Any] = {"rule_id": "r", "dimension": "user", "limit": 100, "window_seconds": 60}


def read(**fields: Any) -> Rule:
    rule = Rule.read({**MINIMAL, **fields})
    assert rule is not None
    return rule


def errors_of(data: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Rule.read(data)
    return [str(problem) for problem in caught.value.problems]


def test_defaults() -> None:
    rule = read()
    assert rule.to_data() == {
        "rule_id": "r",
        "name": "r",
        "dimension": "user",
        "identifier": "*",
        "endpoint_pattern": "*",
        "method": "*",
        "tier": "*",
        "algorithm": "sliding_window_counter",
        "limit": 100,
        "window_seconds": 60,
        "burst": None,
        "mode": "enforce",
        "on_store_error": None,
        "expires_at": None,
        "created_at": None,
        "updated_at": None,
        "version": 0,
    }
    assert rule.compiled() == Limit(100, 60, algorithm="sliding_window_counter")


def test_example_of_the_spec() -> None:
    """The example of SPEC, with the fields that a repository adds."""
    data = {
        "rule_id": "orders-per-user",
        "name": "Orders per user",
        "dimension": "user",
        "identifier": "*",
        "endpoint_pattern": "/api/v1/orders/*",
        "method": "*",
        "tier": "*",
        "algorithm": "sliding_window_counter",
        "limit": 100,
        "window_seconds": 60,
        "burst": None,
        "mode": "enforce",
        "on_store_error": None,
        "expires_at": None,
        "created_at": "2026-01-31T12:00:00Z",
        "updated_at": "2026-01-31T12:00:00Z",
        "version": 3,
    }
    rule = Rule.read(data)
    assert rule is not None
    assert list(rule.to_data()) == list(data)
    assert Rule.stored(rule.body(), 3, 1_769_860_800_000_000, 1_769_860_800_000_000).to_data() == data
    assert set(data) | {"calendar", "timezone", "origin", "store", "headers", "lease"} == set(RULE_FIELDS)


# -- fields that have several spellings -----------------------------------------------------------------------------

SPELLINGS: list[tuple[str, object, object]] = [
    *(("dimension", spelling, "apikey") for spelling in ("apikey", "API_KEY", "api_key", "Api-Key", "ApiKey")),
    *(("dimension", one.enum_name, one.name) for one in IDENTIFIED),
    ("dimension", "Org", "org"),
    ("dimension", ["org"], "org"),
    ("dimension", ["ORG", "Api_Key"], "org,apikey"),
    ("identifier", ["42"], "42"),
    ("algorithm", "sliding_window", "sliding_window_counter"),
    ("algorithm", "Sliding_Window", "sliding_window_counter"),
    ("algorithm", "TOKEN_BUCKET", "token_bucket"),
    ("algorithm", None, "sliding_window_counter"),
    ("mode", "Shadow", "shadow"),
    ("mode", None, "enforce"),
    ("on_store_error", "CLOSED", "closed"),
    ("method", "get", "GET"),
    ("method", "m-search", "M-SEARCH"),
    ("method", "*", "*"),
    ("tier", None, "*"),
    ("identifier", None, "*"),
    ("window_seconds", 0.5, 0.5),
    ("limit", 0, 0),
]


@pytest.mark.parametrize(("name", "written", "expected"), SPELLINGS, ids=lambda value: str(value))
def test_spellings(name: str, written: object, expected: object) -> None:
    assert getattr(read(**{name: written}), name) == expected


TIMESTAMPS = [
    ("2023-11-14T22:13:20Z", 1_700_000_000_000_000),
    ("2023-11-14T23:13:20+01:00", 1_700_000_000_000_000),
    ("2023-11-14T22:13:20.5Z", 1_700_000_000_500_000),
    ("2023-11-14 22:13:20.000001+00:00", 1_700_000_000_000_001),
    (1_700_000_000, 1_700_000_000_000_000),
    (1_700_000_000.25, 1_700_000_000_250_000),
    (0, 0),
    ("9999-12-31T23:59:59Z", 253_402_300_799_000_000),
    (None, None),
]


@pytest.mark.parametrize(("written", "expected"), TIMESTAMPS, ids=lambda value: str(value))
def test_expires_at(written: object, expected: int | None) -> None:
    rule = read(expires_at=written)
    assert rule.expires_us == expected
    assert Rule.read(rule.to_data()) == rule


ADDRESSES = [
    ("10.0.0.1", "10.0.0.1"),
    ("::ffff:10.0.0.1", "10.0.0.1"),
    ("2001:DB8::1", "2001:db8::/64"),
    ("2001:db8::/64", "2001:db8::/64"),
    ("2001:db8::9/64", "2001:db8::/64"),
    ("[2001:db8::1]", "2001:db8::/64"),
    ("fe80::1%eth0", "fe80::/64"),
    ("*", "*"),
    ("not an address", "not an address"),
]


@pytest.mark.parametrize(("written", "expected"), ADDRESSES, ids=lambda value: str(value))
def test_addresses(written: str, expected: str) -> None:
    assert read(dimension="ip", identifier=written).identifier == expected
    assert subject_address(expected) == expected


def test_only_addresses_are_read_as_addresses() -> None:
    assert read(identifier="2001:DB8::1").identifier == "2001:DB8::1"


# -- rule_id and name -----------------------------------------------------------------------------------------------

NAMES = [
    ("Orders per user", "orders-per-user"),
    ("  /api/v1: 100%  ", "api-v1-100"),
    ("Größe v1.2_b", "größe-v1.2_b"),
    ("--x--", "x"),
    ("n" * 500, "n" * 63),
]


@pytest.mark.parametrize(("name", "made"), NAMES, ids=lambda value: str(value)[:20])
def test_rule_id_is_derived_from_the_name(name: str, made: str) -> None:
    rule = read(rule_id=None, name=name)
    assert (rule.rule_id, rule.name) == (made, name)


def test_explicit_rule_id_is_kept() -> None:
    assert read(rule_id="Orders/Per User:1", name="x").rule_id == "Orders/Per User:1"
    assert read(rule_id="r" * 255).rule_id == "r" * 255


# -- validation errors ----------------------------------------------------------------------------------------------

HUGE = 9007199254740991
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rule_id": None}, "rule_id: is missing: write a rule_id such as 'orders-per-user', or a name to make it from"),
    ({"rule_id": 7}, "rule_id: must be text, not 7: write it in quotes, '7'"),
    ({"rule_id": ""}, "rule_id: must not be empty: write a string, or leave it out"),
    (
        {"rule_id": " x"},
        "rule_id: must not begin or end with a space, nor have line breaks or control characters",
    ),
    (
        {"rule_id": "a\nb"},
        "rule_id: must not begin or end with a space, nor have line breaks or control characters",
    ),
    ({"rule_id": "r" * 256}, "rule_id: is too long: 255 bytes at most"),
    ({"rule_id": None, "name": "!?"}, "name: '!?' has no letter or digit to make a rule_id from: write a rule_id"),
    ({"name": ["x"]}, "name: must be text, not a list"),
    ({"dimension": None}, "dimension: is missing: write one of user, apikey, client, ip, key, api, global"),
    (
        {"dimension": "usr"},
        "dimension: must be one of user, apikey, client, ip, key, api, global, not 'usr'; did you mean 'user'?",
    ),
    (
        {"dimension": "cost center"},
        "dimension: must be one of user, apikey, client, ip, key, api, global, or the name of an attribute "
        "([a-z][a-z0-9_]{0,31}), not 'cost center'",
    ),
    ({"dimension": []}, "dimension: must name 1 to 8 dimensions, not 0"),
    ({"dimension": [f"a{n}" for n in range(9)]}, "dimension: must name 1 to 8 dimensions, not 9"),
    ({"dimension": ["org", "Org"]}, "dimension[1]: names org twice: name each dimension once"),
    (
        {"dimension": ["org", "global"]},
        "dimension[1]: global counts all callers together, and adds nothing to others: leave it out",
    ),
    (
        {"dimension": ["org", "usr"]},
        "dimension[1]: must be one of user, apikey, client, ip, key, api, global, not 'usr'; did you mean 'user'?",
    ),
    ({"dimension": ["org", 7]}, "dimension[1]: must be one of user, apikey, client, ip, key, api, global, not 7"),
    (
        {"dimension": ["org", "model"], "identifier": "acme"},
        "identifier: must be '*', or a list with an identifier or '*' for each of org, model, not 'acme'",
    ),
    (
        {"dimension": ["org", "model"], "identifier": ["acme"]},
        "identifier: must be '*', or a list with an identifier or '*' for each of org, model, not a list of 1",
    ),
    (
        {"dimension": ["org", "model"], "identifier": ["acme", 7]},
        "identifier[1]: must be text, not 7: write it in quotes, '7'",
    ),
    (
        {"dimension": ["org", "model"], "identifier": ["acme", ""]},
        "identifier[1]: must not be empty: write a string, or leave it out",
    ),
    (
        {"dimension": ["org", "api"], "identifier": ["acme", "/x"]},
        "identifier[1]: a rule of dimension api has none: leave it out, write the path as endpoint_pattern",
    ),
    (
        {"dimension": ["org", "ip"], "identifier": ["*", "10.0.0.0/8"]},
        "identifier[1]: must be one address, not the network '10.0.0.0/8': write '*' for every address",
    ),
    ({"dimension": "org", "identifier": ["a", "b"]}, "identifier: must be one identifier, because org is one"),
    ({"headers": "no"}, "headers: must be true or false, not 'no'"),
    ({"dimension": 1}, "dimension: must be one of user, apikey, client, ip, key, api, global, not 1"),
    ({"limit": None}, "limit: is missing: write "),
    ({"limit": -1}, "limit: must be a whole number"),
    ({"limit": 1.5}, "limit: must be a whole number"),
    ({"limit": True}, "limit: must be a whole number"),
    ({"limit": "100"}, "limit: must be a whole number"),
    ({"limit": HUGE + 1}, "limit: must be a whole number"),
    ({"limit": HUGE}, "limit: limit '9007199254740991/minute using sliding_window_counter' is too large"),
    ({"window_seconds": None}, "window_seconds: is missing: write "),
    ({"window_seconds": 0}, "window_seconds: must be a number of seconds above 0, not 0"),
    ({"window_seconds": -5}, "window_seconds: must be a number of seconds above 0, not -5"),
    ({"window_seconds": "1m"}, "window_seconds: must be a number of seconds above 0, not '1m'"),
    ({"window_seconds": float("inf")}, "window_seconds: must be a number of seconds above 0, not inf"),
    ({"window_seconds": float("nan")}, "window_seconds: must be a number of seconds above 0, not nan"),
    ({"window_seconds": 1e-9}, "window_seconds: must be a whole number of microseconds"),
    ({"window_seconds": 1e30}, "window_seconds: is too long to count exactly"),
    ({"burst": 5}, "burst: sliding_window_counter has no burst: leave it out, or use token_bucket or gcra"),
    ({"burst": 0, "algorithm": "gcra"}, "burst: must be a whole number"),
    (
        {"burst": 3, "limit": 0, "algorithm": "gcra"},
        "burst: a limit of 0 blocks everything and takes no burst: leave it out",
    ),
    ({"burst": HUGE, "algorithm": "gcra"}, "burst: limit '100/minute burst 9007199254740991 using gcra' is too large"),
    ({"identifier": 42}, "identifier: must be text, not 42: write it in quotes, '42'"),
    ({"identifier": ""}, "identifier: must not be empty: write a string, or leave it out"),
    ({"identifier": "k" * 1025}, "identifier: is too long: 1024 bytes at most"),
    (
        {"identifier": "/x", "dimension": "api"},
        "identifier: a rule of dimension api has none: leave it out, write the path as endpoint_pattern",
    ),
    (
        {"identifier": "x", "dimension": "global"},
        "identifier: a rule of dimension global has none: leave it out, it counts all callers together",
    ),
    *(
        (
            {"identifier": network, "dimension": "ip"},
            f"identifier: must be one address, not the network '{network}': write '*' for every address",
        )
        for network in ("10.0.0.0/24", "10.0.0.0/64", "2001:db8::/48")
    ),
    ({"endpoint_pattern": "api*"}, "endpoint_pattern: 'api*' is not a pattern: a path begins with '/'"),
    ({"endpoint_pattern": "/a*"}, "endpoint_pattern: '/a*' has the segment 'a*'"),
    ({"method": "GET POST"}, "method: must be a method such as GET or POST, or '*' for every one, not 'GET POST'"),
    ({"method": "M" * 33}, "method: must be a method such as GET or POST"),
    ({"method": 1}, "method: must be text, not 1"),
    ({"tier": ""}, "tier: must not be empty"),
    ({"tier": "t" * 256}, "tier: is too long: 255 bytes at most"),
    ({"algorithm": "tokn_bucket"}, "did you mean 'token_bucket'?"),
    ({"mode": "off"}, "mode: must be one of enforce, shadow, disabled, not 'off'"),
    ({"mode": False}, "mode: must be one of enforce, shadow, disabled, not false"),
    ({"on_store_error": "deny"}, "on_store_error: must be one of open, closed, local, not 'deny'"),
    *(
        ({"expires_at": wrong}, "expires_at: must be a timestamp such as '2026-01-31T12:00:00Z' (with its time zone)")
        for wrong in (
            *("tomorrow", "2026-01-31", "2026-01-31T12:00:00", -1, 1e15, float("nan"), True, ["x"]),
            *("9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"),
        )
    ),
    ({"origin": "me"}, "origin: is set by Crestgate: leave it out"),
    ({"metod": "GET"}, "metod: unknown field: did you mean 'method'?"),
    ({"quux": 1}, "quux: unknown field: there are rule_id, name, dimension"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=lambda value: str(value)[:60])
def test_validation_errors(fields: dict[str, Any], message: str) -> None:
    (error,) = errors_of({**MINIMAL, **fields})
    assert message in error


@pytest.mark.parametrize("data", [None, [], "rule", 7], ids=str)
def test_rule_must_be_a_mapping(data: object) -> None:
    (error,) = errors_of(data)
    assert error.startswith("must be a mapping with rule_id, name, dimension, ")


def test_all_errors_are_reported_together() -> None:
    errors = errors_of({"name": "x", "dimension": "usr", "limit": "many", "window_seconds": 0, "mode": "on"})
    assert [line.partition(":")[0] for line in errors] == ["dimension", "limit", "window_seconds", "mode"]


def test_errors_are_reported_with_their_path() -> None:
    problems = Problems()
    assert Rule.read({**MINIMAL, "limit": -1}, "rules[3]", problems) is None
    assert [problem.field for problem in problems.entries] == ["rules[3].limit"]
    assert Rule.read(MINIMAL, "rules[4]", problems) is not None, "an earlier error does not affect this rule"


def test_list_of_dimensions() -> None:
    rule = read(dimension=["org", "User"], identifier=["a,b", "*"])
    assert (rule.dimensions, rule.identifiers) == (("org", "user"), ("a,b", "*"))
    data = rule.to_data()
    assert (data["dimension"], data["identifier"]) == (["org", "user"], ["a,b", "*"])
    assert rule.counter == "rule|user,org|*|60|*"
    same = read(dimension=["user", "org"], identifier=["*", "a,b"])
    assert same.unique_key == rule.unique_key
    every = read(dimension=["org", "user"], identifier=["*", "*"])
    assert every == read(dimension=["org", "user"])
    assert every.to_data()["identifier"] == "*"


def test_hidden_rule() -> None:
    assert "headers" not in read(headers=True).to_data()
    hidden = read(headers=False)
    assert hidden.to_data()["headers"] is False
    assert Rule.read(hidden.body()) == hidden != read()


# -- round trips ----------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@st.composite
def any_rules(draw: st.DrawFn) -> Rule:
    names = [*DIMENSION_NAMES, "org", "model"]
    dimension = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    if len(dimension) > 1 and "global" in dimension:
        dimension.remove("global")
    bucket = draw(st.booleans())
    limit = draw(st.integers(0, 10_000))
    rule = Rule.read(
        {
            "rule_id": draw(st.text(st.sampled_from("abé/:.% "), min_size=1, max_size=9).map(lambda text: f"r{text}r")),
            "name": draw(st.none() | texts),
            "dimension": dimension,
            "identifier": [
                "*" if name in ("api", "global", "ip") else draw(st.just("*") | texts) for name in dimension
            ],
            "endpoint_pattern": draw(st.sampled_from(["*", "/a/*", "/{id}/x", "list", "/", "a/b"])),
            "method": draw(st.sampled_from(["*", "get", "PUT"])),
            "tier": draw(st.just("*") | texts),
            "algorithm": "gcra" if bucket else draw(st.sampled_from(["fixed_window", "sliding_window", None])),
            "limit": limit,
            "window_seconds": draw(st.integers(1, 10**6) | st.integers(1, 10**6).map(lambda n: n / 1000)),
            "burst": draw(st.none() | st.integers(1, 10_000)) if bucket and limit else None,
            "mode": draw(st.sampled_from(["enforce", "shadow", "disabled", None])),
            "on_store_error": draw(st.sampled_from(["open", "closed", "local", None])),
            "expires_at": draw(st.none() | st.integers(0, 253_402_300_799) | st.floats(0, 2e9)),
            "headers": draw(st.sampled_from([None, True, False])),
            "lease": draw(st.sampled_from([None, True, False])) if bucket else None,
            "origin": draw(st.none() | st.dictionaries(texts, st.integers() | texts, max_size=2)),
        }
    )
    assert rule is not None
    return rule


@settings(deadline=None)
@given(any_rules())
def test_serialized_rule_is_parsed_back(rule: Rule) -> None:
    assert Rule.read(rule.to_data()) == rule
    assert Rule.read(json.loads(json.dumps(rule.to_data()))) == rule
    assert Rule.read(rule.body()) == rule
    assert {"version", "created_at", "updated_at"} == set(rule.to_data()) - set(rule.body())


@settings(deadline=None)
@given(any_rules(), any_rules())
def test_rules_share_a_unique_key_only_if_equally_specific_in_one_slot(one: Rule, other: Rule) -> None:
    def slot(rule: Rule) -> tuple[object, ...]:
        lasting = rule.expires_us is None
        return rule.counter, dict(zip(rule.dimensions, rule.identifiers, strict=True)), rule.tier, lasting

    if one.unique_key is None:
        assert one.mode == "disabled"
    else:
        assert (one.unique_key == other.unique_key) == (other.mode != "disabled" and slot(one) == slot(other))


def test_unique_keys() -> None:
    rule = read()
    same = [read(rule_id="x", name="x", limit=5, algorithm="gcra", burst=9, on_store_error="closed")]
    other = [
        read(dimension="ip"),
        read(identifier="1"),
        read(tier="gold"),
        read(method="GET"),
        read(endpoint_pattern="/*"),
        read(window_seconds=61),
        read(mode="shadow"),
        read(expires_at=1),
    ]
    assert {r.unique_key for r in same} == {rule.unique_key}
    assert len({r.unique_key for r in [rule, *other]}) == len(other) + 1
    assert read(expires_at=1).unique_key == read(expires_at=2).unique_key
    assert read(mode="disabled").unique_key is None


def test_versions_do_not_affect_equality() -> None:
    assert Rule.stored(read().body(), 3, 1, 2) == read()
    assert replace(read(), limit=1) != read()


def test_store_of_a_rule_is_returned_only_where_there_is_one() -> None:
    data = {"rule_id": "orders", "dimension": "user", "limit": 1, "window_seconds": 60}
    assert "store" not in Rule.read(data).to_data()
    rule = Rule.read({**data, "store": "hot"})
    assert rule.to_data()["store"] == "hot"
    assert Rule.read(rule.body()) == rule
    with pytest.raises(ValidationError, match="store: must be the name of a store"):
        Rule.read({**data, "store": "redis://cache:6379/0"})
