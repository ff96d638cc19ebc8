"""Policies: one limit for one opaque key, as a rule of dimension `key`.

    TOKEN_BUCKET     holds `capacity`, refilled at `refillRate` a second
    SLIDING_WINDOW   `capacity` per `windowSeconds`, counted exactly by a log

All three numbers are stored as given, including the one that the type does not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from crestgate.core.dimensions import IDENTIFIED
from crestgate.errors import ConfigError
from crestgate.loader.fields import Fields, Problems
from crestgate.rules.compat.rule_ids import derived_id, shorten
from crestgate.rules.compat.validation import check_choice, check_name, check_whole
from crestgate.rules.rule import ANY, Rule

__all__ = [
    "DEFAULT_POLICY",
    "POLICY_FIELDS",
    "POLICY_KEY_PARTS",
    "Policy",
    "policy_of",
    "read_default_policy",
    "read_policy",
]

TYPES = ("TOKEN_BUCKET", "SLIDING_WINDOW")
NUMBERS = ("type", "capacity", "refillRate", "windowSeconds")
POLICY_FIELDS = ("key", *NUMBERS)
POLICY_KEY_PARTS = (*(dimension.name for dimension in IDENTIFIED if dimension.name != "key"), "route")
"""Allowed values of `policy_key`, in the order of the parts of a key."""
DEFAULT_ID = "default-policy"
WILDCARD_NOT_ALLOWED = "'*' would be every key: use default_policy instead"


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy."""

    key: str
    type: str = "TOKEN_BUCKET"
    capacity: int = 100
    refill_rate: int = 10
    window_seconds: int = 60
    id: int = 0

    def __post_init__(self) -> None:
        check_name("key", self.key)
        check_choice("type", self.type, TYPES)
        check_whole("capacity", self.capacity, 1)
        check_whole("refillRate", self.refill_rate, 1)
        check_whole("windowSeconds", self.window_seconds, 1)
        check_whole("id", self.id, 0)

    @property
    def rule_id(self) -> str:
        return derived_id("policy", self.key)

    def rule(self) -> Rule:
        """The rule of this policy."""
        if self.key == ANY:
            raise ConfigError(f"a policy's key {WILDCARD_NOT_ALLOWED}")
        return self._rule(self.rule_id, f"policy of {shorten(self.key)}", self.key)

    def default_rule(self) -> Rule:
        """The rule for every key that has no policy."""
        return self._rule(DEFAULT_ID, "default policy", ANY)

    def _rule(self, rule_id: str, name: str, identifier: str) -> Rule:
        bucket = self.type == "TOKEN_BUCKET"
        rule = Rule(
            rule_id=rule_id,
            name=name,
            dimension="key",
            identifier=identifier,
            limit=self.refill_rate if bucket else self.capacity,
            window_seconds=1 if bucket else self.window_seconds,
            burst=self.capacity if bucket else None,
            algorithm="token_bucket" if bucket else "sliding_window_log",
            origin={"view": "policy", "id": self.id, **self.numbers()},
        )
        rule.compiled()  # raises if it cannot be counted exactly
        return rule

    def numbers(self) -> dict[str, Any]:
        """Type and numbers, with the field names of the API."""
        return {
            "type": self.type,
            "capacity": self.capacity,
            "refillRate": self.refill_rate,
            "windowSeconds": self.window_seconds,
        }


DEFAULT_POLICY = Policy(ANY)


def read_policy(data: object, at: str, problems: Problems) -> Policy | None:
    """Read a policy from plain data; None if it is invalid, with the errors in `problems`."""
    before = len(problems.entries)
    fields = Fields(data, at, problems, POLICY_FIELDS)
    if not isinstance(data, Mapping):
        return None
    key = fields.text("key", required=True)
    if key == ANY:
        fields.report("key", WILDCARD_NOT_ALLOWED)
    return _policy(fields, key, before)


def read_default_policy(data: object, at: str, problems: Problems) -> Policy | None:
    """Read the default policy, for keys without one: a policy without a key."""
    before = len(problems.entries)
    return _policy(Fields(data, at, problems, NUMBERS), ANY, before)


def policy_of(rule: Rule) -> Policy | None:
    """The policy that a rule was written as; None if it was not, or has been changed since."""
    origin = rule.origin
    if origin is None or origin.get("view") != "policy":
        return None
    names = ("type", "capacity", "refillRate", "windowSeconds", "id")
    try:
        policy = Policy(rule.identifier, *(origin.get(name) for name in names))  # type: ignore[arg-type]  # it checks
        same = replace(policy.rule(), name=rule.name) == rule
    except ConfigError:
        return None
    return policy if same else None


def _policy(fields: Fields, key: str, before: int) -> Policy | None:
    """The policy, unless there are more problems than before."""
    numbers = (
        fields.choice("type", TYPES, DEFAULT_POLICY.type),
        fields.integer("capacity", DEFAULT_POLICY.capacity, minimum=1),
        fields.integer("refillRate", DEFAULT_POLICY.refill_rate, minimum=1),
        fields.integer("windowSeconds", DEFAULT_POLICY.window_seconds, minimum=1),
    )
    if len(fields.problems.entries) > before:
        return None
    policy = Policy(key, *numbers)
    try:
        policy.default_rule()
    except ConfigError as error:
        fields.report("capacity", str(error))
        return None
    return policy
