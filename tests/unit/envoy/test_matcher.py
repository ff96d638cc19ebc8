"""The matcher, compared with a direct implementation of the reference's documentation, on generated descriptors."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crestgate.envoy.matcher import Domains
from crestgate.envoy.yaml_reader import read_domain
from crestgate.loader.document import Document
from crestgate.loader.fields import Problems

Descriptor = dict[str, Any]
KEYS = ["a", "b", "a_b"]
letters = st.text("ab_", max_size=4)
values = st.one_of(st.just(""), letters, st.text("ab*", min_size=1, max_size=4))


@st.composite
def levels(draw: st.DrawFn, depth: int = 3) -> list[Descriptor]:
    found = []
    names = draw(st.lists(st.tuples(st.sampled_from(KEYS), values), unique=True, max_size=5))
    for key, value in names:
        descriptor: Descriptor = {"key": key, "value": value}
        if draw(st.booleans()):
            descriptor["rate_limit"] = {"unit": "hour", "requests_per_unit": draw(st.integers(0, 2**32 - 1))}
        if "*" in value and draw(st.booleans()):
            descriptor["share_threshold"] = True
        for flag in ("value_to_metric", "detailed_metric"):
            if draw(st.integers(0, 3)) == 0:
                descriptor[flag] = True
        if depth > 1:
            descriptor["descriptors"] = draw(levels(depth - 1))
        found.append(descriptor)
    return found


entries_of = st.lists(st.tuples(st.sampled_from(KEYS), st.text("ab_*", max_size=5)), max_size=4)


def choose(level: list[Descriptor], key: str, value: str) -> Descriptor | None:
    mine = [descriptor for descriptor in level if descriptor["key"] == key]
    for descriptor in mine:
        if value and descriptor["value"] == value:
            return descriptor
    for descriptor in mine:
        pattern = ".*".join(re.escape(part) for part in descriptor["value"].split("*"))
        if "*" in descriptor["value"] and re.fullmatch(pattern, value, re.DOTALL):
            return descriptor
    return next((descriptor for descriptor in mine if not descriptor["value"]), None)


def reference_match(level: list[Descriptor], entries: list[tuple[str, str]]) -> list[Descriptor] | None:
    """The descriptors on the path to the limit."""
    path = []
    for key, value in entries:
        descriptor = choose(level, key, value)
        if descriptor is None:
            return None
        path.append(descriptor)
        level = descriptor.get("descriptors", [])
    return path if path and "rate_limit" in path[-1] else None


def expected_label(descriptor: Descriptor, key: str, value: str, detailed: bool) -> str:
    written = descriptor["value"]
    if "*" not in written and written:
        text = written
    elif descriptor.get("share_threshold"):
        text = written
    elif detailed or descriptor.get("value_to_metric"):
        text = value
    else:
        text = written
    return f"{key}_{text}" if text else key


@given(levels(), st.lists(entries_of, min_size=1, max_size=8))
def test_limit_counter_and_label(level: list[Descriptor], requests: list[list[tuple[str, str]]]) -> None:
    problems = Problems()
    root = read_domain(Document("", {"domain": "d", "descriptors": level}), problems)
    assert problems.entries == []
    assert root is not None
    domains = Domains({"d": root})
    for entries in requests:
        found, path = domains.match("d", entries), reference_match(level, entries)
        assert (found is None) == (path is None)
        if found is None or path is None:
            continue
        assert found.limit.requests_per_unit == path[-1]["rate_limit"]["requests_per_unit"]
        parts = [
            f"|{key}~{one['value']}" if one.get("share_threshold") else f"|{key}={value}"
            for one, (key, value) in zip(path, entries, strict=True)
        ]
        assert found.key == "d" + "".join(parts)
        detailed = path[-1].get("detailed_metric", False)
        labels = [expected_label(one, key, value, detailed) for one, (key, value) in zip(path, entries, strict=True)]
        assert found.label == ".".join(["d", *labels])
