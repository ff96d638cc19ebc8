"""What is known of one source of rules, and what is new in it: taken apart in full before any of it is believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from headgate.errors import ConfigError, Invalid, Problem
from headgate.reading.fields import Problems
from headgate.rules.records import plan_of, rule_of, tier_of
from headgate.rules.repositories.port import Changes, Record, Reloads, Source
from headgate.rules.rule import Rule
from headgate.rules.ruleset import Defaults, client_defaults
from headgate.rules.views.policies import read_default_policy

__all__ = ["Loaded", "Shelf", "defaults_of", "overlaid"]

T = TypeVar("T")


class Loaded:
    """What a source has said, taken apart; made in full before anything is believed."""

    def __init__(self, changes: Changes) -> None:
        self.revision = changes.revision
        self.complete = changes.complete
        self.rules: dict[str, Rule | None] = {}
        self.tiers: dict[str, str | None] = {}
        self.plans: dict[str, tuple[str, ...] | None] = {}
        self.defaults: dict[str, Record | None] = {}
        for kind, record_id in changes.deleted:
            if kind == "rule":
                self.rules[record_id] = None
            elif kind == "tier":
                self.tiers[record_id] = None
            elif kind == "plan":
                self.plans[record_id] = None
            else:
                self.defaults[record_id] = None
        for record in changes.records:
            if record.kind == "rule":
                self.rules[record.id] = rule_of(record)
            elif record.kind == "tier":
                self.tiers[record.id] = tier_of(record)
            elif record.kind == "plan":
                self.plans[record.id] = plan_of(record)
            else:
                defaults_of({record.id: record})  # refuses what is none
                self.defaults[record.id] = record


class Shelf:
    """What is known of one source."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.check: Callable[[Rule], None] | None = None
        self.again = False
        self.revision = 0
        self.rules: dict[str, Rule] = {}
        self.claims: dict[str, str] = {}
        self.tiers: dict[str, str] = {}
        self.plans: dict[str, tuple[str, ...]] = {}
        self.defaults: dict[str, Record] = {}
        self.moved: set[str] = set()
        """Claims that the last change took or gave up."""

    def read(self) -> Loaded | None:
        """What is new, if anything is. Changes nothing here."""
        since = self.revision
        if self.again:
            self.again = False
            since = 0
            if isinstance(self.source, Reloads):
                self.source.reload()
        changes = self.source.changes(since)
        if changes is None and since < self.revision:
            changes = Changes(0, True, ())  # all of it was asked for, and there is nothing any more
        if changes is None:
            return None
        loaded = Loaded(changes)
        if self.check is not None:
            for rule in loaded.rules.values():
                if rule is not None:
                    self.check(rule)
        return loaded

    def put(self, loaded: Loaded) -> set[str]:
        """Take in what is new; the ids of the rules that are different now."""
        self.revision = loaded.revision
        changed: dict[str, Rule | None] = dict(loaded.rules)
        if loaded.complete:
            changed.update({rule_id: None for rule_id in self.rules if rule_id not in loaded.rules})
        touched = {rule_id for rule_id, rule in changed.items() if not _same(self.rules.get(rule_id), rule)}
        self.moved = set()
        for rule_id in touched:
            old = self.rules.pop(rule_id, None)
            claim = old.claim if old is not None else None
            if claim is not None:
                self.moved.add(claim)
                if self.claims.get(claim) == rule_id:
                    del self.claims[claim]
        for rule_id in touched:
            rule = changed[rule_id]
            if rule is None:
                continue
            self.rules[rule_id] = rule
            claim = rule.claim
            if claim is not None:
                self.moved.add(claim)
                self.claims[claim] = rule_id
        self.tiers = _merged(self.tiers, loaded.tiers, loaded.complete)
        self.plans = _merged(self.plans, loaded.plans, loaded.complete)
        self.defaults = _merged(self.defaults, loaded.defaults, loaded.complete)
        return touched


def _same(old: Rule | None, new: Rule | None) -> bool:
    return old == new and (old is None or new is None or old.version == new.version)


def _merged(old: dict[str, T], new: Mapping[str, T | None], complete: bool) -> dict[str, T]:
    if not new and not complete:
        return old
    merged = {} if complete else dict(old)
    for name, value in new.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = value
    return merged


def overlaid(shelves: Sequence[Mapping[str, T]]) -> Mapping[str, T]:
    """All names, each with what the last shelf that has it says."""
    filled = [shelf for shelf in shelves if shelf]
    if len(filled) < 2:
        return filled[0] if filled else {}
    return {name: value for shelf in filled for name, value in shelf.items()}


def defaults_of(records: Mapping[str, Record]) -> Defaults:
    """The defaults that the records say, and the usual ones where they say nothing."""
    usual = Defaults()
    policy, clients, parts = (records.get(name) for name in ("policy", "client_limits", "policy_key"))
    try:
        return Defaults(
            _default_policy(policy) if policy is not None else usual.policy,
            tuple(client_defaults(clients.body["limits"])) if clients is not None else usual.client,
            tuple(parts.body["parts"]) if parts is not None else usual.policy_key,
        )
    except Invalid:
        raise
    except (ConfigError, KeyError, TypeError) as error:
        raise Invalid([Problem("defaults", f"cannot be read: {error}")]) from None


def _default_policy(record: Record) -> Rule:
    problems = Problems()
    policy = read_default_policy(record.body, "default policy", problems)
    problems.raise_any()
    assert policy is not None
    return policy.default_rule()
