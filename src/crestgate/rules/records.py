"""Conversion of rules, tiers, plans and defaults to and from the records that a repository stores.

rule      by its rule_id            the rule, without the fields that the repository sets
tier      by the user               {"tier": "premium"}
plan      by its name               {"limits": ["10/second burst 20", "5000/day"]}, and "lease": true if it has leases
default   "policy"                  a policy without its key: for keys without one
          "client_limits"           {"limits": ["100/minute"]}: for clients that are not configured
          "policy_key"              {"parts": ["user", "route"]}: which key's policy joins the chain of a request
          "policy_ids"              {"last": 7}: the number of the last policy that was created
key       by its key_id             of the service: see service/auth/keys.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from shlex import quote
from typing import Any

from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.core.plans import Resolver
from crestgate.errors import ConfigError, Problem, ValidationError
from crestgate.loader.fields import describe
from crestgate.rules.compat.clients import client_limit_of
from crestgate.rules.compat.policies import policy_of
from crestgate.rules.plan import StoredPlan
from crestgate.rules.port import Edit, Record
from crestgate.rules.rule import Rule

__all__ = [
    "POLICY_IDS",
    "edit_of",
    "last_number_of",
    "plan_body",
    "plan_of",
    "read_limits",
    "read_plan",
    "record_of",
    "rule_of",
    "tier_of",
]

POLICY_IDS = "policy_ids"
"""The id of the default record that has the last policy number."""


def rule_of(record: Record) -> Rule:
    """The rule of a record; ValidationError, with the record's name, if it is invalid."""
    try:
        return Rule.stored(record.body, record.version, record.created_us or None, record.updated_us or None)
    except ValidationError as error:
        problems = [Problem(f"rule {record.id!r}: {p.field}", p.message) for p in error.problems]
        advice = f"; `crestgate rules delete {quote(record.id)}` removes this rule"
        problems[-1] = problems[-1]._replace(message=problems[-1].message + advice)
        raise ValidationError(problems) from None


def record_of(rule: Rule) -> Record:
    """A rule as a record that was read from a file: it has no timestamps."""
    rule = _as_written(rule)
    return Record("rule", rule.rule_id, 1, rule.body(), 0, 0, rule.unique_key, rule.expires_us)


def edit_of(rule: Rule, expected: int | None = None) -> Edit:
    """The edit that writes a rule."""
    rule = _as_written(rule)
    return Edit("rule", rule.rule_id, rule.body(), expected, rule.unique_key, rule.expires_us)


def tier_of(record: Record) -> str:
    tier = record.body.get("tier")
    if not isinstance(tier, str) or not tier:
        raise ValidationError([Problem(f"tier of {record.id!r}", f"must be text, not {describe(tier)}")])
    return tier


def last_number_of(record: Record | None) -> int:
    """The number of the last policy that was created, by the record of `POLICY_IDS`; 0 if there is none."""
    last = 0 if record is None else record.body.get("last")
    if not isinstance(last, int) or isinstance(last, bool) or last < 0:
        raise ValidationError(
            [Problem(f"default {POLICY_IDS!r}: last", f"must be a whole number, not {describe(last)}")]
        )
    return last


def plan_of(record: Record) -> StoredPlan:
    return read_plan(record.id, record.body.get("limits"), record.body.get("lease", False))


def plan_body(plan: StoredPlan) -> dict[str, Any]:
    """What a repository stores of a plan, and what the API returns beside its name."""
    body: dict[str, Any] = {"limits": list(plan.limits)}
    return {**body, "lease": True} if plan.lease else body


def read_plan(name: str, limits: object, lease: object = False) -> StoredPlan:
    """A plan, with its limits in their canonical notation; ConfigError if it is invalid."""
    items = _items(limits)
    Resolver({name: items})  # raises for an invalid name
    return StoredPlan(tuple([str(limit) for item in items for limit in Limit.parse_chain(item)]), _lease(lease))


def read_limits(limits: object) -> tuple[str, ...]:
    """The limits of a plan that has no name yet."""
    found = [limit for item in _items(limits) for limit in Limit.parse_chain(item)]
    for limit in found:
        build(limit, str(limit))  # raises for limits that no algorithm can count
    return tuple(map(str, found))


def _lease(lease: object) -> bool:
    if not isinstance(lease, bool):
        raise ConfigError.of("lease", f"must be true or false, not {describe(lease)}")
    return lease


def _items(limits: object) -> list[str]:
    items = [limits] if isinstance(limits, str) else limits
    if not isinstance(items, Sequence) or not items or not all(isinstance(item, str) for item in items):
        raise ConfigError("must be a limit such as '10/second burst 20', or a list of them")
    return list(items)


def _as_written(rule: Rule) -> Rule:
    """The rule without an outdated origin: the rule was changed since it was written as a policy or client limit."""
    outdated = rule.origin is not None and policy_of(rule) is None and client_limit_of(rule) is None
    return replace(rule, origin=None) if outdated else rule
