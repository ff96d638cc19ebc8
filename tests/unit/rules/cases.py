"""Notation of the resolver's test table (table.py): which rules apply, in which order, with which counters.

A case is text, so that it can be read beside the contract:

    rules     one a line: its rule_id, its dimension, then what differs from the defaults: all identifiers, every
              path, method and tier, 60 seconds, no expiry; with commas, dimension and identifier are lists:
                  for=42  on=/orders/*  method=GET  tier=gold  5s  shadow  disabled  ends=+10 (seconds from now)
                  limit=100  burst=5  algorithm=gcra  on_store_error=closed
    request   the fields of a request context: user=42 path=/orders method=GET; @org=acme is an attribute
    chain     one a line, in order: the rule_id, the key of its counter, the counter's name

Expected values are written out, never computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crestgate.core.context import RequestContext
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import Defaults, RuleSet

__all__ = ["NOW_US", "Case", "cases_of", "context_of", "cut", "one_rule", "rules_of"]

NOW_US = 1_700_000_000_000_000


@dataclass(frozen=True)
class Case:
    """One request under some rules."""

    title: str
    rules: str
    request: str
    chain: str
    tiers: Mapping[str, str] = field(default_factory=dict)
    policy_key: tuple[str, ...] = ()
    sentence: str = ""

    def resolved(self) -> list[str]:
        """The chain that the library resolves, in the notation of the table."""
        rules = RuleSet.empty().edited(
            rules_of(self.rules), tiers=self.tiers, defaults=Defaults(policy_key=self.policy_key)
        )
        chosen = rules.resolve(context_of(self.request), NOW_US)
        return [f"{entry.rule.rule_id} {key} {entry.algorithm.name}" for key, entry in chosen]

    def expected(self) -> list[str]:
        return [" ".join(line.split()) for line in self.chain.strip().splitlines()]


def cases_of(sentence: str, *cases: Case) -> list[Case]:
    """The cases of one sentence of the contract."""
    return [
        Case(case.title, case.rules, case.request, case.chain, case.tiers, case.policy_key, sentence) for case in cases
    ]


def rules_of(text: str) -> list[Rule]:
    return [one_rule(line) for line in text.strip().splitlines()]


def one_rule(line: str) -> Rule:
    rule_id, dimension, *settings = line.split()
    data: dict[str, Any] = {"rule_id": rule_id, "dimension": dimension, "limit": 100, "window_seconds": 60}
    if "," in dimension:
        data["dimension"] = dimension.split(",")
    for setting in settings:
        name, _, value = setting.partition("=")
        if name in ("shadow", "disabled"):
            data["mode"] = name
        elif name == "ends":
            data["expires_at"] = NOW_US / 1_000_000 + float(value)
        elif name == "for":
            data["identifier"] = value.split(",") if "," in value else value
        elif name == "on":
            data["endpoint_pattern"] = value
        elif name in ("limit", "burst"):
            data[name] = int(value)
        elif name in ("method", "tier", "algorithm", "on_store_error"):
            data[name] = value
        else:
            data["window_seconds"] = float(setting.removesuffix("s"))
    rule = Rule.read(data)
    assert rule is not None
    return rule


def context_of(text: str) -> RequestContext:
    fields = dict(cut(setting) for setting in text.split())
    attributes = {name.removeprefix("@"): value for name, value in fields.items() if name.startswith("@")}
    known: dict[str, Any] = {name: value for name, value in fields.items() if not name.startswith("@")}
    return RequestContext(**known, attributes=attributes or None)


def cut(setting: str) -> tuple[str, str]:
    name, _, value = setting.partition("=")
    return name, value
