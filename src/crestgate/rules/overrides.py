"""Overrides: their readable ids, and how one is found again to be replaced or undone.

An override is a rule for one user that expires, in the slot of another rule, its base. Its id names the user and the
base, `override:acme:orders-per-user`, so that a person can type it. A slot has one override per user at a time. Older
versions named overrides by the slot (`override:acme:rule%7Cuser%7C*%7C60%7C*`): those are found by their slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

from crestgate.errors import ValidationError
from crestgate.rules.compat.rule_ids import derived_id, derived_id_prefix
from crestgate.rules.diff import all_records
from crestgate.rules.port import Lookup
from crestgate.rules.records import rule_of
from crestgate.rules.rule import ANY, Rule

__all__ = ["OVERRIDE_PREFIX", "is_override", "override_id", "overrides_in", "overrides_of", "slot_id"]

KIND = "override"
OVERRIDE_PREFIX = f"{KIND}:"
MAX_SLOT_ID = 100
"""Characters of an id that is made from a slot; a longer one is a digest."""


def override_id(user: str, base: Rule) -> str:
    """The id of an override. That of an override which replaces itself stays."""
    return base.rule_id if is_override(base) and base.identifier == user else derived_id(KIND, user, base.rule_id)


def slot_id(endpoint_pattern: str, window_seconds: float, method: str) -> str:
    """The id that stands for the base of an override in a slot without a rule.

    >>> slot_id("/orders/*", 60, "*"), slot_id("*", 0.5, "POST")
    ('/orders/*,60s', 'POST,*,0.5s')
    """
    seconds = int(window_seconds) if window_seconds == int(window_seconds) else window_seconds
    text = f"{endpoint_pattern},{seconds}s" if method == ANY else f"{method},{endpoint_pattern},{seconds}s"
    if len(text) <= MAX_SLOT_ID:
        return text
    return f"slot-{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def is_override(rule: Rule) -> bool:
    return rule.rule_id.startswith(OVERRIDE_PREFIX) and rule.expires_us is not None and rule.dimension == "user"


def overrides_of(repository: Lookup, user: str) -> Iterator[Rule]:
    """The stored overrides of a user, expired ones too. Unreadable rules are left out: they are not in force."""
    for record in all_records(repository, "rule", derived_id_prefix(KIND, user)):
        try:
            rule = rule_of(record)
        except ValidationError:
            continue
        if is_override(rule) and rule.identifier == user:
            yield rule


def overrides_in(rules: Iterable[Rule], now_us: int, user: str | None = None) -> list[Rule]:
    """Of some rules, the overrides in force; of one user, or of all."""
    return [
        rule
        for rule in rules
        if is_override(rule) and (rule.expires_us or 0) > now_us and user in (None, rule.identifier)
    ]
