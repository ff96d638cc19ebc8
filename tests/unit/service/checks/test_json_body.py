"""JSON bodies with a duplicate key are refused with its name; others are accepted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crestgate.errors import InvalidRequestError
from crestgate.service.checks import json_body
from crestgate.service.checks.forms import read_batch, read_check, read_reset, read_verify
from crestgate.service.checks.json_body import (
    MAX_REDUNDANT_KEYS,
    DuplicateKeyError,
    redundant_keys,
    refuse_duplicates,
)
from crestgate.service.checks.reservations import read_reservation, read_settle
from crestgate.service.http.envoy_json import read_rate_limit

READERS = {
    "check": read_check,
    "batch": read_batch,
    "verify": read_verify,
    "json": read_rate_limit,
    "reset": read_reset,
}

TWICE = {
    ("check", '{"key": "a", "key": "b"}'): "key",
    ("check", '{"key": "a", "key": "a"}'): "key",
    ("check", '{"key": "a", "cost": 1, "cost": 1}'): "cost",
    ("check", '{"key": "a", "cost": 5, "cost": 1}'): "cost",
    ("check", '{"key": "a", "method": null, "method": null}'): "method",
    ("check", '{"key": "a", "\\u006bey": "b"}'): "key",
    ("check", '{"context": {"user": "a", "user": "b"}}'): "user",
    ("check", '{"context": {"user": "a"}, "context": {"user": "a"}}'): "context",
    ("check", '{"key": "a", "key": "b:c"}'): "key",
    ("check", '{"key": "a\\u003ab", "key": "a\\u003ab"}'): "key",
    ("check", '{"key": "a:b", "key": "a\\u003Ab"}'): "key",
    ("check", '{"key"\n:\t"a","key"  :  "b"}'): "key",
    ("batch", '{"checks": [{"key": "a"}], "checks": []}'): "checks",
    ("batch", '{"checks": [{"key": "a"}, {"key": "b", "key": "c"}]}'): "key",
    ("batch", '{"checks": [{"key": "a", "cost": 1}, {"key": "b", "cost": 1, "cost": 2}, {"key": "c"}]}'): "cost",
    ("batch", '{"checks": [{"op": "peek", "counters": [{"key": "a", "limit": "1/s", "limit": "9/s"}]}]}'): "limit",
    ("verify", '{"clientId": "a", "clientId": "b"}'): "clientId",
    ("reset", '{"key": "a", "key": "b"}'): "key",
    ("json", '{"domain": "a", "descriptors": [{"entries": [{"key": "k", "key": "l", "value": "v"}]}]}'): "key",
    ("json", '{"domain": "a", "descriptors": [{"hitsAddend": 0, "hitsAddend": 1}]}'): "hitsAddend",
}
ONCE = [
    ("check", '{"key": "user:42", "plans": ["a:b"], "cost": 1}'),
    ("check", '{"key": "a", "cost": 1, "method": null, "timestamp": null, "context": null}'),
    ("check", '{"context": {"ip": "2001:db8::1", "path": "/a:b", "tier": null}, "cost": 3}'),
    ("check", '{"key": "a\\u003ab\\\\"}'),
    ("batch", '{"checks": [{"key": "a", "cost": 1}, {"key": "b"}], "exact": false}'),
    ("batch", '{"checks": [{"op": "take", "counters": [{"key": "a", "limit": "1/s", "cost": 1, "binds": true}]}]}'),
    ("verify", '{"clientId": "a:b", "apiName": null}'),
    ("json", '{"domain": "a", "descriptors": [{"entries": [{"key": "k", "value": ""}], "hitsAddend": "0"}]}'),
]


@pytest.mark.parametrize(("kind", "body"), TWICE, ids=str)
def test_duplicate_key_is_refused_by_name(kind: str, body: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        READERS[kind](body.encode())
    name = TWICE[kind, body]
    assert str(refused.value) == f"{name}: is written twice in one object: write it once"
    assert refused.value.field == name


@pytest.mark.parametrize(("kind", "body"), ONCE, ids=str)
def test_unique_keys_pass(kind: str, body: str) -> None:
    READERS[kind](body.encode())


keys = st.sampled_from(["key", "endpoint", "method", "identifier", "cost", "timestamp"])
texts = st.none() | st.text(st.characters(codec="utf-8"), max_size=4) | st.text(':"\\a', max_size=4)
members = st.tuples(keys, texts, st.booleans(), st.sampled_from(["", " ", "\n\t"]))


@given(st.lists(members, max_size=6))
def test_every_duplicate_is_detected_and_nothing_else(pairs: list[tuple[str, Any, bool, str]]) -> None:
    """Compares the count of colons with a parser that checks every key."""
    numbers = {"cost": 1, "timestamp": 1.5}
    written = [
        f"{json.dumps(name)}{space}:{space}{json.dumps(numbers.get(name, text), ensure_ascii=escaped)}"
        for name, text, escaped, space in pairs
    ]
    body = ("{" + ",".join(written) + "}").encode()
    names = [name for name, _, _, _ in pairs]
    if len({*names}) < len(names):
        with pytest.raises(InvalidRequestError, match="is written twice"):
            read_check(body)
    else:
        read_check(body)


def test_ordinary_bodies_are_parsed_once() -> None:
    """Checking the keys of ordinary bodies would cost more than the decision."""
    policy = b'{"key": "user:42", "plans": ["a:b"], "cost": 1}'
    assert not redundant_keys(policy, read_check(policy))
    check = {"dimension": "USER", "identifier": "42", "endpoint": "/api/v1/orders", "method": "GET", "cost": 1}
    for dumped in (json.dumps(check), json.dumps(check, indent=2), json.dumps(check, separators=(",", ":"))):
        assert not redundant_keys(dumped.encode(), read_check(dumped.encode()))
    batch = json.dumps({"checks": [check] * 3}).encode()
    assert not redundant_keys(batch, read_batch(batch))


ENTRIES = {
    ("check", '{"context": {"attributes": {"org": "acme", "model": 1}}}'): "context.attributes.model",
    ("check", '{"context": {"attributes": {"org": "acme", "model": ""}}}'): "context.attributes.model",
    ("check", '{"context": {"attributes": {"model": null, "org": []}}}'): "context.attributes.model",
    (
        "batch",
        '{"checks": [{"key": "a"}, {"context": {"attributes": {"org": {}}}}]}',
    ): "checks[1].context.attributes.org",
    ("reserve", '{"key": "a", "costs": {"requests": 1, "tokens": 1.5}}'): "costs.tokens",
    ("settle", '{"actual": {"requests": 1, "tokens": true}}'): "actual.tokens",
    ("settle", '{"actual": {"requests": 1, "tokens": "5"}}'): "actual.tokens",
    # What else is wrong leaves the name of the mapping.
    ("settle", '{"actual": {"tokens": 1e400}}'): "actual",
    ("settle", '{"actual": {"tokens": 1.5}, "more": '): "actual",
    ("check", '{"context": {"attributes": {"org": 1}}, "context": 1}'): "context.attributes",
}


@pytest.mark.parametrize(("kind", "body"), ENTRIES, ids=str)
def test_entry_of_a_mapping_is_named(kind: str, body: str) -> None:
    readers = {**READERS, "reserve": read_reservation, "settle": read_settle}
    with pytest.raises(InvalidRequestError) as refused:
        readers[kind](body.encode())
    assert refused.value.field == ENTRIES[kind, body]


def test_long_numbers_are_not_parsed() -> None:
    refuse_duplicates(b'{"a": ' + b"9" * 10_000 + b"}")
    with pytest.raises(DuplicateKeyError, match="a"):
        refuse_duplicates(b'{"a": ' + b"9" * 10_000 + b', "a": 1}')


@pytest.mark.parametrize("pair", ['"key": "a"', '"method": null'])
def test_body_of_nothing_but_redundant_keys_is_refused_unread(pair: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "refuse_duplicates", lambda _: pytest.fail("every key of it was read"))
    body = "{" + ", ".join([pair] * (MAX_REDUNDANT_KEYS + 2)) + "}"
    with pytest.raises(InvalidRequestError, match="more than 20,000 duplicate or null keys"):
        read_check(body.encode())


@pytest.mark.parametrize("escape", ["\\u003a", "\\u003A"])
def test_body_with_escaped_colon_is_bounded_as_well(escape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "refuse_duplicates", lambda _: pytest.fail("every key of it was read"))
    body = f'{{"key": "{escape}", ' + ", ".join(['"key": "a"'] * MAX_REDUNDANT_KEYS) + "}"
    with pytest.raises(InvalidRequestError, match="more than 20,000 duplicate or null keys"):
        read_check(body.encode())


def test_other_escapes_do_not_cause_a_second_parse() -> None:
    body = b'{"key": "\\u003cb\\u003e", "cost": 1}'  # as written by Go's encoder
    assert not redundant_keys(body, read_check(body))
