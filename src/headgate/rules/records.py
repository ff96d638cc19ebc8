"""Rules, tiers, plans and defaults as the records that a repository keeps, and back.

rule      by its rule_id            the rule, without what the repository itself knows
tier      by the user               {"tier": "premium"}
plan      by its name               {"limits": ["10/second burst 20", "5000/day"]}
default   "policy"                  a policy without its key: for keys that have none
          "client_limits"           {"limits": ["100/minute"]}: for clients that nobody has configured
          "policy_key"              {"parts": ["user", "route"]}: which key's policy joins the chain of a request
          "policy_ids"              {"last": 7}: the number of the last policy that was made
key       by its key_id             of the service: see service/auth/keys.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from shlex import quote

from headgate.core.algorithms import build
from headgate.core.limit import Limit
from headgate.engine.plans import Resolver
from headgate.errors import ConfigError, Invalid, Problem
from headgate.reading.fields import kind_of
from headgate.rules.repositories.port import Edit, Record
from headgate.rules.rule import Rule
from headgate.rules.views.clients import client_limit_of
from headgate.rules.views.policies import policy_of

__all__ = [
    "POLICY_IDS",
    "edit_of",
    "last_number_of",
    "plan_of",
    "read_limits",
    "read_plan",
    "record_of",
    "rule_of",
    "tier_of",
]

POLICY_IDS = "policy_ids"
"""The default that counts the policies' numbers."""


def rule_of(record: Record) -> Rule:
    """The rule that a record keeps; Invalid, with the record's name, if it is none."""
    try:
        return Rule.stored(record.body, record.version, record.created_us or None, record.updated_us or None)
    except Invalid as error:
        problems = [Problem(f"rule {record.id!r}: {p.field}", p.message) for p in error.problems]
        # All rules are read together, so one that cannot be keeps the others from being used.
        advice = f"; `headgate rules delete {quote(record.id)}` removes this rule"
        problems[-1] = problems[-1]._replace(message=problems[-1].message + advice)
        raise Invalid(problems) from None


def record_of(rule: Rule) -> Record:
    """A rule as a record that is not written by a repository, but read from a file: it has no times."""
    rule = _as_written(rule)
    return Record("rule", rule.rule_id, 1, rule.body(), 0, 0, rule.claim, rule.expires_us)


def edit_of(rule: Rule, expected: int | None = None) -> Edit:
    """What writes a rule."""
    rule = _as_written(rule)
    return Edit("rule", rule.rule_id, rule.body(), expected, rule.claim, rule.expires_us)


def tier_of(record: Record) -> str:
    tier = record.body.get("tier")
    if not isinstance(tier, str) or not tier:
        raise Invalid([Problem(f"tier of {record.id!r}", f"must be text, not {kind_of(tier)}")])
    return tier


def last_number_of(record: Record | None) -> int:
    """The number of the last policy that was made, by the record of `POLICY_IDS`; 0 if there is none."""
    last = 0 if record is None else record.body.get("last")
    if not isinstance(last, int) or isinstance(last, bool) or last < 0:
        raise Invalid([Problem(f"default {POLICY_IDS!r}: last", f"must be a whole number, not {kind_of(last)}")])
    return last


def plan_of(record: Record) -> tuple[str, ...]:
    return read_plan(record.id, record.body.get("limits"))


def read_plan(name: str, limits: object) -> tuple[str, ...]:
    """A plan's limits, each in its canonical notation; ConfigError says what is wrong."""
    items = _items(limits)
    Resolver({name: items})  # refuses names that cannot be a plan's
    return tuple([str(limit) for item in items for limit in Limit.parse_chain(item)])


def read_limits(limits: object) -> tuple[str, ...]:
    """The same, whatever the plan is called."""
    found = [limit for item in _items(limits) for limit in Limit.parse_chain(item)]
    for limit in found:
        build(limit, str(limit))  # refuses limits that no algorithm can count
    return tuple(map(str, found))


def _items(limits: object) -> list[str]:
    items = [limits] if isinstance(limits, str) else limits
    if not isinstance(items, Sequence) or not items or not all(isinstance(item, str) for item in items):
        raise ConfigError("must be a limit such as '10/second burst 20', or a list of them")
    return list(items)


def _as_written(rule: Rule) -> Rule:
    """The rule without an origin that says something else, as it does when the rule was changed and it was not."""
    stray = rule.origin is not None and policy_of(rule) is None and client_limit_of(rule) is None
    return replace(rule, origin=None) if stray else rule
