"""Patterns: parsing, and errors of invalid ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.errors import ConfigError
from crestgate.rules.matching.patterns import ANY_SEGMENT, Pattern, parse_pattern

READ = [
    ("*", Pattern("*", None)),
    ("**", Pattern("*", None)),
    ("getUsers", Pattern("getUsers", None)),
    ("get users, please?", Pattern("get users, please?", None)),
    ("/", Pattern("/", ())),
    ("/*", Pattern("/*", (), True)),
    ("/**", Pattern("/*", (), True)),
    ("/orders", Pattern("/orders", ("orders",))),
    ("/orders/", Pattern("/orders", ("orders",))),
    ("/orders/*", Pattern("/orders/*", ("orders",), True)),
    ("/orders/**", Pattern("/orders/*", ("orders",), True)),
    ("/orders/*/", Pattern("/orders/*", ("orders",), True)),
    ("/orders/{id}", Pattern("/orders/{}", ("orders", ANY_SEGMENT))),
    ("/orders/{}", Pattern("/orders/{}", ("orders", ANY_SEGMENT))),
    ("/orders/{order id}", Pattern("/orders/{}", ("orders", ANY_SEGMENT))),
    ("/users/*/orders", Pattern("/users/{}/orders", ("users", ANY_SEGMENT, "orders"))),
    ("/users/{id}/*", Pattern("/users/{}/*", ("users", ANY_SEGMENT), True)),
    ("/*/*/*", Pattern("/{}/{}/*", (ANY_SEGMENT, ANY_SEGMENT), True)),
    ("//orders/./x/../%37", Pattern("/orders/7", ("orders", "7"))),
    ("orders%2F7", Pattern("/orders/7", ("orders", "7"))),
    ("orders/7", Pattern("/orders/7", ("orders", "7"))),
    ("https://example.com/orders/*", Pattern("/orders/*", ("orders",), True)),
]


@pytest.mark.parametrize(("text", "pattern"), READ, ids=[row[0] for row in READ])
def test_valid_patterns(text: str, pattern: Pattern) -> None:
    assert parse_pattern(text) == pattern


REFUSED = [
    ("", "'' is not a pattern: a path begins with '/', as in '/api/v1/*'; '*' alone is every path"),
    ("api*", "'api*' is not a pattern: a path begins with '/'"),
    ("{id}", "'{id}' is not a pattern: a path begins with '/'"),
    ("***", "'***' is not a pattern: a path begins with '/'"),
    ("/api*", "'/api*' has the segment 'api*': '*' and '{name}' must be a whole segment, as in '/users/{id}/*'"),
    ("/a/*.json", "'/a/*.json' has the segment '*.json': '*' and '{name}' must be a whole segment"),
    ("/a/{id}.json", "has the segment '{id}.json': '*' and '{name}' must be a whole segment"),
    ("/a/{id", "has the segment '{id': '*' and '{name}' must be a whole segment"),
    ("/a/{{id}}", "has the segment '{{id}}'"),
    ("/a/{x/y}", "has the segment '{x'"),
    ("/a/**/b", "'/a/**/b' has the segment '**': '**' is only allowed at the end, as in '/users/{id}/*'"),
    ("/a/***", "has the segment '***'"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_invalid_patterns(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_pattern(text)
    assert message in str(caught.value)


@settings(deadline=None)
@given(st.text(st.sampled_from("/*{}ab.%2e;"), max_size=12))
def test_any_text_is_a_pattern_or_an_error(text: str) -> None:
    try:
        pattern = parse_pattern(text)
    except ConfigError:
        return
    assert parse_pattern(pattern.key) == pattern
    if pattern.segments is not None:
        assert pattern.key[0] == "/"
        assert all(segment == ANY_SEGMENT or not set("*{}") & set(segment) for segment in pattern.segments)
