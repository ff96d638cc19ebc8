"""Reads the YAML of envoyproxy/ratelimit: a file is a domain and its descriptors, which nest.

domain: messaging
descriptors:
  - key: message_type
    value: marketing                    # or a pattern with *, or none for any value
    descriptors:
      - key: to_number
        rate_limit: {unit: day, requests_per_unit: 5}

`rate_limit` has six additional fields: `algorithm`, `burst`, `unit_multiplier`, `headers`, `lease` and
`charge_beyond_limit`, which a file can also have beside `domain`, for all of its limits. What the reference silently
ignores (such as a field at the wrong level) is an error here.
"""

from __future__ import annotations

import re
from typing import Any

from crestgate.core.algorithms import ALGORITHMS, CONCURRENCY
from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER
from crestgate.core.limit import leasable_algorithms
from crestgate.envoy.descriptor_tree import WILD, DescriptorNode, add_node, domain_node, path_of
from crestgate.envoy.rate_limit import DEFAULT_ALGORITHM, MAX_REQUESTS, UNITS, DescriptorLimit, compile_limit
from crestgate.errors import ConfigError, Problem
from crestgate.loader.document import Document
from crestgate.loader.fields import Fields, Problems, describe, join_names

__all__ = ["TEXTS", "read_domain"]

ROOT = ("domain", "descriptors", "charge_beyond_limit")
RATE_LIMIT = (
    *("unit", "requests_per_unit", "unlimited", "name", "replaces", "algorithm", "burst", "unit_multiplier"),
    *("charge_beyond_limit", "headers", "lease"),
)
DESCRIPTOR = (
    *("key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric"),
    *("share_threshold", "metadata"),
)
EXTENSIONS = ("algorithm", "burst", "unit_multiplier", "charge_beyond_limit", "headers", "lease")
TEXTS = re.compile(r"domain|(?:descriptors\[[0-9]+\]\.)+(?:key|value|rate_limit\.(?:name|replaces\[[0-9]+\]\.name))")
"""Paths whose values are always text: `value: 5` and `value: 1.10` are these characters."""
MAX_BYTES = 1024
_BOOLEANS = {"yes": True, "on": True, "y": True, "no": False, "off": False, "n": False}
"""Other booleans of YAML 1.1."""


def read_domain(document: Document, problems: Problems) -> DescriptorNode | None:
    """The domain of one file; None if it names none."""
    if not document.data and not document.problems and isinstance(document.data, dict):
        problems.add("", "is empty: write 'domain: …' and 'descriptors: …', or remove the file")
        return None
    if document.problems and not document.data:
        return None
    fields = Fields(document.data, "", problems, ROOT)
    domain = _text(fields, "domain", "the name that requests have") if fields.is_mapping else ""
    root = domain_node(domain)
    _read_level(fields, root, document, _optional_flag(fields, "charge_beyond_limit", None))
    return root if domain else None


def _read_level(fields: Fields, parent: DescriptorNode, document: Document, beyond: bool | None) -> None:
    """`beyond` is `charge_beyond_limit` of the domain."""
    paths: dict[tuple[str, str], str] = {}
    for path, data in fields.items("descriptors"):
        inner = _fields(data, path, fields.problems, DESCRIPTOR, RATE_LIMIT, "inside of 'rate_limit'")
        if not inner.is_mapping:
            continue
        key = _text(inner, "key", "the key that requests have")
        value = _text(inner, "value")
        if WILD in key:
            inner.report("key", f"has a {WILD!r}, which is a wildcard only in values: write the whole key")
        first = paths.setdefault((key, value), path)
        if key and first != path:
            inner.report("value" if value else "key", _duplicate_descriptor(first, document))
        shares = _flag(inner, "share_threshold")
        if shares and WILD not in value:
            inner.report("share_threshold", f"is for a value with a {WILD!r} in it, such as 'files/*': remove it")
        node = add_node(parent, key, value, shares, _flag(inner, "value_to_metric"), _flag(inner, "detailed_metric"))
        node.limit = _read_limit(inner, path_of(node), beyond)
        _read_level(inner, node, document, beyond)


def _read_limit(descriptor: Fields, label: str, beyond: bool | None) -> DescriptorLimit | None:
    shadow, quota = _flag(descriptor, "shadow_mode"), _flag(descriptor, "quota_mode")
    metadata = _metadata(descriptor)
    if not descriptor.has("rate_limit"):
        return None
    data, path = descriptor.values["rate_limit"], descriptor.path("rate_limit")
    fields = _fields(data, path, descriptor.problems, RATE_LIMIT, DESCRIPTOR, "beside 'rate_limit', not in it")
    if not fields.is_mapping:
        return None
    name = _text(fields, "name")
    replaces = _replaces(fields, name)
    unlimited = _flag(fields, "unlimited")
    before = len(fields.problems.entries)
    requests: int = fields.integer("requests_per_unit", 0, required=not unlimited, maximum=MAX_REQUESTS)
    if unlimited:
        for field in ("unit", *EXTENSIONS):
            if fields.has(field):
                fields.report(field, "is not allowed for an unlimited limit: remove it, or 'unlimited'")
        return DescriptorLimit(None, label, name, replaces, shadow, quota, 0, 0, metadata)
    seconds = UNITS[fields.choice("unit", UNITS, "second", required=True)]
    seconds *= fields.integer("unit_multiplier", 1, minimum=1, maximum=MAX_SAFE_INTEGER // 1_000_000 // seconds)
    algorithm: str = fields.choice("algorithm", [name for name in ALGORITHMS if name != CONCURRENCY], DEFAULT_ALGORITHM)
    burst = _burst(fields, algorithm)
    beyond = _optional_flag(fields, "charge_beyond_limit", beyond)
    headers = fields.boolean("headers", True)
    lease = _lease(fields, algorithm)
    if len(fields.problems.entries) > before:
        return None
    try:
        steps, unit = compile_limit(requests, seconds, algorithm, label, burst, headers=headers, lease=lease)
    except ConfigError as error:
        fields.problems.add(path, str(error))
        return None
    return DescriptorLimit(steps, label, name, replaces, shadow, quota, requests, unit, metadata, beyond, headers)


def _burst(fields: Fields, algorithm: str) -> int | None:
    if not fields.has("burst"):
        return None
    if not ALGORITHMS[algorithm].takes_burst:
        supported = join_names(name for name, kind in ALGORITHMS.items() if kind.takes_burst)
        fields.report("burst", f"{algorithm} has none: remove it, or write 'algorithm:' with one of {supported}")
        return None
    if fields.values.get("requests_per_unit") == 0:
        fields.report("burst", "a limit of 0 blocks everything and has no burst: remove it")
        return None
    burst: int | None = fields.integer("burst", None, minimum=1, maximum=MAX_REQUESTS)
    return burst


def _lease(fields: Fields, algorithm: str) -> bool:
    lease = _flag(fields, "lease")
    if lease and not ALGORITHMS[algorithm].can_lease:
        others = join_names(leasable_algorithms())
        fields.report(
            "lease", f"is not possible with {algorithm}: remove it, or write 'algorithm:' with one of {others}"
        )
    return lease


def _replaces(fields: Fields, name: str) -> frozenset[str]:
    names = []
    for path, data in fields.items("replaces"):
        inner = Fields(data, path, fields.problems, ("name",))
        if not inner.is_mapping:
            continue
        other = _text(inner, "name", "the name of the limit that this one replaces")
        if other and other == name:
            inner.report("name", f"{describe(name)} is the name of this limit: write another name")
        names.append(other)
    return frozenset(names)


def _metadata(descriptor: Fields) -> dict[str, Any] | None:
    value = descriptor.values.get("metadata")
    if value is not None and not isinstance(value, dict):
        descriptor.report("metadata", f"must be a mapping, 'name: …' for each entry, not {describe(value)}")
        return None
    return value or None


def _text(fields: Fields, name: str, expected: str = "") -> str:
    """A text, also where YAML reads it as a number or a boolean. Empty if it is absent, which is reported if it is
    required."""
    value = fields.values.get(name)
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, int):
        value = str(value)
    if value is None or value == "":
        if expected:
            fields.report(name, f"{'is missing' if value is None else 'is empty'}: write {expected}")
        return ""
    if not isinstance(value, str):
        hint = "in quotes" if isinstance(value, float) else "a descriptor for each" if name == "value" else "one"
        fields.report(name, f"must be text, not {describe(value)}: write {hint}")
        return ""
    if len(value.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        fields.report(name, f"is too long: {MAX_BYTES} bytes at most")
    return value


def _flag(fields: Fields, name: str) -> bool:
    value = fields.values.get(name)
    if isinstance(value, str) and value.lower() in _BOOLEANS:
        return _BOOLEANS[value.lower()]
    return fields.boolean(name, False)


def _optional_flag(fields: Fields, name: str, default: bool | None) -> bool | None:
    return _flag(fields, name) if fields.has(name) else default


def _fields(
    data: object, path: str, problems: Problems, known: tuple[str, ...], elsewhere: tuple[str, ...], where: str
) -> Fields:
    """The fields of a mapping; misplaced ones are reported."""
    misplaced = [name for name in data if name in elsewhere and name not in known] if isinstance(data, dict) else []
    for name in misplaced:
        problems.add(f"{path}.{name}", f"belongs {where}: move it there")
    rest = {name: value for name, value in data.items() if name not in misplaced} if isinstance(data, dict) else data
    return Fields(rest, path, problems, known)


def _duplicate_descriptor(first: str, document: Document) -> str:
    line = document.locate(Problem(first, "")).line
    where = "above" if line is None else f"at line {line}"
    return f"this key and value are already defined {where}: keep one of the two, or write another value"
