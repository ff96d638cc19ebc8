"""The work to resolve a request depends on the request, not on the number of rules. (Benchmarks measure the time.)"""

from __future__ import annotations

import json
from typing import Any

from crestgate.core.context import RequestContext
from crestgate.rules.matching.paths import readings
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import RuleSet

CONTEXT = RequestContext(user="alice", ip="10.0.0.1", path="/api/v1/orders/5/items", method="GET")
COMMON = {"limit": 10, "window_seconds": 60}


def others(count: int) -> list[dict[str, Any]]:
    """Rules for other paths, users and addresses, some of them on the matching patterns."""
    kinds: list[dict[str, Any]] = [
        {"dimension": "user", "endpoint_pattern": "/api/v1/path-{n}/*"},
        {"dimension": "user", "identifier": "somebody-{n}", "endpoint_pattern": "/api/v1/orders/*"},
        {"dimension": "ip", "identifier": "10.1.0.{n}"},
        {"dimension": "global", "endpoint_pattern": "/path-{n}"},
        {"dimension": "user", "tier": "tier-{n}", "endpoint_pattern": "/api/*"},
    ]
    made = []
    for n in range(count):
        kind = {name: value.replace("{n}", str(n)) for name, value in kinds[n % len(kinds)].items()}
        made.append({"rule_id": f"rule-{n}", **kind, **COMMON})
    return made


def applying() -> list[dict[str, Any]]:
    return [
        {"rule_id": "orders", "dimension": "user", "endpoint_pattern": "/api/v1/orders/*", **COMMON},
        {"rule_id": "address", "dimension": "ip", **COMMON},
        {"rule_id": "all", "dimension": "global", "endpoint_pattern": "/api/*", **COMMON},
    ]


def compared_rules(rules: RuleSet) -> list[str]:
    """The rules that are compared: those on matching patterns, for one of the request's subjects."""
    found = []
    for table in rules.tables(CONTEXT.path, readings(CONTEXT.path or "")):
        for dimension, subject in rules.keys(CONTEXT, CONTEXT.path).items():
            entries = [*table.exact.get(subject, ())]
            for tier in ("*", rules.tier_of(CONTEXT)):
                entries += table.shared.get(dimension, {}).get(tier, ())
            found += [entry.rule.rule_id for entry in entries]
    return sorted(found)


OWN = RequestContext(user="alice", path="/x", attributes={"org": "acme", "model": "large"})


def own_dimensions(count: int) -> list[dict[str, Any]]:
    """Rules for other values, names and lists of attributes than those of the request."""
    kinds: list[dict[str, Any]] = [
        {"dimension": "org", "identifier": "org-{n}"},
        {"dimension": "name_{n}"},
        {"dimension": ["org", "model"], "identifier": ["org-{n}", "*"]},
        {"dimension": ["org", "model"], "identifier": ["org-{n}", "large"]},
        {"dimension": ["org", "name_{n}"]},
        {"dimension": ["user", "org", "z_{n}"], "identifier": ["*", "acme", "*"]},
        {"dimension": ["a_{n}", "model"]},
    ]
    made = []
    for n in range(count):
        kind = json.loads(json.dumps(kinds[n % len(kinds)]).replace("{n}", str(n)))
        made.append({"rule_id": f"rule-{n}", **kind, **COMMON})
    return made


OWN_APPLYING: list[dict[str, Any]] = [
    {"rule_id": "both", "dimension": ["org", "model"], "identifier": ["acme", "*"], **COMMON},
    {"rule_id": "org", "dimension": "org", **COMMON},
    {"rule_id": "user-org", "dimension": ["user", "org"], **COMMON},
]


def work(count: int) -> list[int]:
    """Lookups in the tables of composite dimensions, and subjects that are tried."""
    rules = RuleSet.empty().edited(map(Rule.read, own_dimensions(count) + OWN_APPLYING))
    assert [entry.rule.rule_id for _, entry in rules.resolve(OWN, 0)] == ["both", "org", "user-org"]
    lookups = 0

    class Counting(dict[str, Any]):
        def get(self, *args: Any) -> Any:
            nonlocal lookups
            lookups += 1
            return super().get(*args)

    def watch(node: Any) -> None:
        for child in node.children.values():
            watch(child)
        node.children = Counting(node.children)

    keys = rules.keys(OWN, OWN.path)
    assert rules.every is not None
    rules.every.composites(keys)  # builds the index
    watch(rules.every._index.root)  # type: ignore[union-attr]  # as above
    found = rules.every.composites(keys)
    return [lookups, len(found), sum(len(one.subjects(keys)) for one in found)]


def test_work_for_own_dimensions_does_not_grow_with_the_rule_set() -> None:
    assert work(70) == work(10_000)


def test_compared_rules_do_not_grow_with_the_rule_set() -> None:
    few, many = (RuleSet.empty().edited(map(Rule.read, others(n) + applying())) for n in (10, 10_000))
    assert [entry.rule.rule_id for _, entry in many.resolve(CONTEXT, 0)] == ["orders", "address", "all"]
    assert compared_rules(few) == compared_rules(many) == ["address", "all", "orders"]
