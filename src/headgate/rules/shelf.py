"""What is known of one source of rules, and what is new in it: taken apart in full before any of it is believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

from headgate.errors import ConfigError, Invalid, Problem, StoreError
from headgate.reading.fields import Problems, kind_of
from headgate.rules.records import plan_of, rule_of, tier_of
from headgate.rules.repositories.port import Changes, Record, Reloads, Source
from headgate.rules.rule import Rule
from headgate.rules.ruleset import Defaults, client_defaults
from headgate.rules.sections import POLICY_KEY_PARTS
from headgate.rules.views.policies import read_default_policy

__all__ = ["Known", "Loaded", "Shelf", "defaults_of", "overlaid"]

T = TypeVar("T")


class Loaded:
    """What a source has said, taken apart."""

    def __init__(self, changes: Changes) -> None:
        self.revision = changes.revision
        self.complete = changes.complete
        self.rules: dict[str, Rule | None] = {}
        self.tiers: dict[str, str | None] = {}
        self.plans: dict[str, tuple[str, ...] | None] = {}
        self.defaults: dict[str, Record | None] = {}
        self.keys: dict[str, Mapping[str, Any] | None] = {}
        """As they are kept: what cannot be a key opens nothing, and keeps no rule from being used."""
        for kind, record_id in changes.deleted:
            if kind == "rule":
                self.rules[record_id] = None
            elif kind == "tier":
                self.tiers[record_id] = None
            elif kind == "plan":
                self.plans[record_id] = None
            elif kind == "key":
                self.keys[record_id] = None
            else:
                self.defaults[record_id] = None
        for record in changes.records:
            if record.kind == "rule":
                self.rules[record.id] = rule_of(record)
            elif record.kind == "tier":
                self.tiers[record.id] = tier_of(record)
            elif record.kind == "plan":
                self.plans[record.id] = plan_of(record)
            elif record.kind == "key":
                self.keys[record.id] = record.body
            else:
                defaults_of({record.id: record})  # refuses what is none
                self.defaults[record.id] = record


@dataclass(frozen=True, slots=True)
class Known:
    """All that a source has said until now. Never changed; `after` gives the next one."""

    revision: int = 0
    rules: Mapping[str, Rule] = field(default_factory=dict)
    tiers: Mapping[str, str] = field(default_factory=dict)
    plans: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Record] = field(default_factory=dict)
    keys: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    def after(self, loaded: Loaded) -> tuple[Known, set[str]]:
        """What is known with what is new, and the ids of the rules that are different then."""
        changed: dict[str, Rule | None] = dict(loaded.rules)
        if loaded.complete:
            changed.update({rule_id: None for rule_id in self.rules if rule_id not in loaded.rules})
        touched = {rule_id for rule_id, rule in changed.items() if not _same(self.rules.get(rule_id), rule)}
        known = Known(
            loaded.revision,
            _merged(self.rules, {rule_id: changed[rule_id] for rule_id in touched}, False),
            _merged(self.tiers, loaded.tiers, loaded.complete),
            _merged(self.plans, loaded.plans, loaded.complete),
            _merged(self.defaults, loaded.defaults, loaded.complete),
            _merged(self.keys, loaded.keys, loaded.complete),
        )
        return known, touched


class Shelf:
    """One source, what is known of it, and what is wrong with it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.known = Known()
        self.problem: str | None = None
        self.checks: list[Callable[[Rule], None]] = []
        """What every rule has to pass: each limiter can only decide by what its own store supports."""
        self.again = False
        """Whether everything is to be read, changed or not."""
        self.lost = False
        """Whether all that was kept was found gone, since when less than was known is not believed."""
        self.looking = Lock()
        """One look at a time. Not held by anybody in a forked child: it is replaced there."""

    def read(self) -> Loaded | None:
        """What is new, if anything is. Changes nothing of what is known."""
        again, self.again = self.again, False
        try:
            return self._read(again)
        except BaseException:
            self.again = self.again or again
            raise

    def _read(self, again: bool) -> Loaded | None:
        since = self.known.revision
        if again:
            since = 0
            if isinstance(self.source, Reloads):
                self.source.reload()
        changes = self.source.changes(since)
        if changes is None and since < self.known.revision:
            changes = Changes(0, True, ())  # all of it was asked for, and there is nothing any more
        if changes is None:
            return None
        self.lost = changes.revision < self.known.revision and (self.lost or not changes.revision) and not again
        if self.lost:
            raise StoreError(
                f"all that was kept there is gone, up to revision {self.known.revision}: put it back from a backup and "
                "reload the rules; or reload them as they are, if that was meant"
            )
        loaded = Loaded(changes)
        for check in self.checks:
            for rule in loaded.rules.values():
                if rule is not None:
                    check(rule)
        return loaded


def _same(old: Rule | None, new: Rule | None) -> bool:
    return old == new and (old is None or new is None or old.version == new.version)


def _merged(old: Mapping[str, T], new: Mapping[str, T | None], complete: bool) -> Mapping[str, T]:
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
    """All names, each with what the last of several sources that has it says."""
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
            tuple(client_defaults(_texts(clients, "limits"))) if clients is not None else usual.client,
            _policy_key(parts) if parts is not None else usual.policy_key,
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


def _policy_key(record: Record) -> tuple[str, ...]:
    parts = _texts(record, "parts")
    if not all(part in POLICY_KEY_PARTS for part in parts):
        raise ConfigError(f"policy_key is made of {', '.join(POLICY_KEY_PARTS)}, not {', '.join(parts)}")
    return tuple(parts)


def _texts(record: Record, name: str) -> list[str]:
    texts = record.body[name]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name} of {record.id} must be a list of texts, not {kind_of(texts)}")
    return texts
