"""State of one rule source: its last snapshot, and the changes since, validated before they are applied.

A record of a database that cannot be used keeps its last valid version, and does not keep the others out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from crestgate.errors import ConfigError, Problem, StoreError, ValidationError
from crestgate.loader.fields import Problems, describe
from crestgate.rules.compat.policies import POLICY_KEY_PARTS, read_default_policy
from crestgate.rules.plan import StoredPlan
from crestgate.rules.port import Changes, Record, Reloadable, Source, UnreadableRecord
from crestgate.rules.records import plan_of, rule_of, tier_of
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import Defaults, client_defaults

__all__ = ["Loaded", "SourceSnapshot", "SourceState", "defaults_of", "overlay"]

T = TypeVar("T")
Name = tuple[str, str]
"""Kind and id of a record."""


class Loaded:
    """Changes of a source, parsed and validated. `checks` raise ConfigError to refuse a rule.

    A record that cannot be used does not keep the others out, unless they are atomic: then it raises.
    """

    def __init__(self, changes: Changes, checks: Sequence[Callable[[Rule], None]] = ()) -> None:
        self.revision = changes.revision
        self.complete = changes.complete
        self.replaced = changes.replaced
        self.rules: dict[str, Rule | None] = {}
        self.tiers: dict[str, str | None] = {}
        self.plans: dict[str, StoredPlan | None] = {}
        self.defaults: dict[str, Record | None] = {}
        self.keys: dict[str, Mapping[str, Any] | None] = {}
        """As stored: an invalid API key is not accepted, and does not affect the rules."""
        self.unreadable: dict[Name, UnreadableRecord] = {}
        by_kind: dict[str, dict[str, Any]] = {
            "rule": self.rules,
            "tier": self.tiers,
            "plan": self.plans,
            "default": self.defaults,
            "key": self.keys,
        }
        self.names: set[Name] = {*changes.deleted, *((record.kind, record.id) for record in changes.records)}
        """Everything that was read, or deleted."""
        for kind, record_id in changes.deleted:
            if kind in by_kind:
                by_kind[kind][record_id] = None
        for record in changes.records:
            try:
                by_kind[record.kind][record.id] = _parsed(record, checks)
            except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:  # ConfigError, too
                if changes.atomic:
                    raise
                self.unreadable[record.kind, record.id] = _unusable(record, error)
        if changes.unreadable and changes.atomic:
            raise ValidationError([problem for one in changes.unreadable for problem in one.problems])
        self.unreadable.update({(one.kind, one.id): one for one in changes.unreadable})
        # A key must not stay valid because nobody can read that it was revoked.
        self.keys.update({name: None for unreadable_kind, name in self.unreadable if unreadable_kind == "key"})


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """All records of a source. Immutable; `after` returns the next one."""

    revision: int = 0
    rules: Mapping[str, Rule] = field(default_factory=dict)
    tiers: Mapping[str, str] = field(default_factory=dict)
    plans: Mapping[str, StoredPlan] = field(default_factory=dict)
    defaults: Mapping[str, Record] = field(default_factory=dict)
    keys: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    unreadable: Mapping[Name, UnreadableRecord] = field(default_factory=dict)
    """Records that cannot be used. Their last valid versions, if there were any, are among the others."""

    def after(self, loaded: Loaded) -> tuple[SourceSnapshot, set[str]]:
        """The snapshot with these changes, and the ids of the rules that differ."""
        bad = loaded.unreadable
        changed: dict[str, Rule | None] = dict(loaded.rules)
        if loaded.complete:
            gone = (rule_id for rule_id in self.rules if rule_id not in loaded.rules and ("rule", rule_id) not in bad)
            changed.update(dict.fromkeys(gone))
        touched = {rule_id for rule_id, rule in changed.items() if not _same(self.rules.get(rule_id), rule)}
        kept = (
            {} if loaded.complete else {name: one for name, one in self.unreadable.items() if name not in loaded.names}
        )
        snapshot = SourceSnapshot(
            loaded.revision,
            _merged(self.rules, {rule_id: changed[rule_id] for rule_id in touched}),
            _merged(*_valid("tier", self.tiers, loaded.tiers, loaded)),
            _merged(*_valid("plan", self.plans, loaded.plans, loaded)),
            _merged(*_valid("default", self.defaults, loaded.defaults, loaded)),
            _merged({} if loaded.complete else self.keys, loaded.keys),
            {**kept, **bad},
        )
        return snapshot, touched

    def valid_version(self, name: Name) -> bool:
        """Whether a record that cannot be used has a version that stays in force."""
        kind, record_id = name
        kinds: dict[str, Mapping[str, object]] = {
            "rule": self.rules,
            "tier": self.tiers,
            "plan": self.plans,
            "default": self.defaults,
        }
        return record_id in kinds.get(kind, {})


class SourceState:
    """One source, and its last snapshot."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.snapshot = SourceSnapshot()
        self.checks: list[Callable[[Rule], None]] = []
        """Each limiter adds one: it can only use what its own store supports."""
        self.full_reload = False
        """Whether the next read is of everything, changed or not."""
        self.lost = False
        """Whether the source was found empty, or at an older revision; until it is back, it is not used."""

    def read(self) -> Loaded | None:
        """The changes since the snapshot, if any. Does not change the snapshot."""
        everything, self.full_reload = self.full_reload, False
        try:
            return self._read(everything)
        except BaseException:
            self.full_reload = self.full_reload or everything
            raise

    def _read(self, everything: bool) -> Loaded | None:
        since = self.snapshot.revision
        if everything:
            since = 0
            if isinstance(self.source, Reloadable):
                self.source.reload()
        changes = self.source.changes(since)
        if changes is None and since < self.snapshot.revision:
            changes = Changes(0, True, ())  # everything was requested, and the source is empty now
        if changes is None:
            return None
        self.lost = changes.revision < self.snapshot.revision and (self.lost or not changes.revision) and not everything
        if self.lost:
            raise StoreError(
                f"all rules up to revision {self.snapshot.revision} are gone: restore them from a backup and reload, "
                "or reload as it is if that was intended"
            )
        return Loaded(changes, self.checks)


def _same(old: Rule | None, new: Rule | None) -> bool:
    return old == new and (old is None or new is None or old.version == new.version)


def _merged(old: Mapping[str, T], new: Mapping[str, T | None]) -> Mapping[str, T]:
    if not new:
        return old
    merged = dict(old)
    for name, value in new.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = value
    return merged


def _valid(
    kind: str, old: Mapping[str, T], new: Mapping[str, T | None], loaded: Loaded
) -> tuple[Mapping[str, T], Mapping[str, T | None]]:
    """For `_merged`: of complete changes, only the old versions of what cannot be read stay."""
    if not loaded.complete:
        return old, new
    return {name: value for name, value in old.items() if (kind, name) in loaded.unreadable}, new


def _parsed(record: Record, checks: Sequence[Callable[[Rule], None]]) -> object:
    """What a record stands for; raises if that is invalid."""
    if record.kind == "tier":
        return tier_of(record)
    if record.kind == "plan":
        return plan_of(record)
    if record.kind == "key":
        return record.body
    if record.kind == "default":
        defaults_of({record.id: record})  # raises if it is invalid
        return record
    rule = rule_of(record)
    for check in checks:
        check(rule)
    return rule


def _unusable(record: Record, error: Exception) -> UnreadableRecord:
    if isinstance(error, ValidationError):
        return UnreadableRecord(record.kind, record.id, error.problems)
    reason = str(error) if isinstance(error, ConfigError) else repr(error)
    return UnreadableRecord(record.kind, record.id, (Problem(f"{record.kind} {record.id!r}", reason),))


def overlay(layers: Sequence[Mapping[str, T]]) -> Mapping[str, T]:
    """All layers as one mapping; a later layer wins."""
    filled = [layer for layer in layers if layer]
    if len(filled) < 2:
        return filled[0] if filled else {}
    return {name: value for layer in filled for name, value in layer.items()}


def defaults_of(records: Mapping[str, Record]) -> Defaults:
    """The defaults of these records, and the built-in ones where there is none."""
    built_in = Defaults()
    policy, clients, parts = (records.get(name) for name in ("policy", "client_limits", "policy_key"))
    try:
        return Defaults(
            _default_policy(policy) if policy is not None else built_in.policy,
            tuple(client_defaults(_strings(clients, "limits"))) if clients is not None else built_in.client,
            _policy_key(parts) if parts is not None else built_in.policy_key,
        )
    except ValidationError:
        raise
    except (ConfigError, KeyError, TypeError) as error:
        raise ValidationError([Problem("defaults", f"cannot be read: {error}")]) from None


def _default_policy(record: Record) -> Rule:
    problems = Problems()
    policy = read_default_policy(record.body, "default policy", problems)
    problems.raise_any()
    assert policy is not None
    return policy.default_rule()


def _policy_key(record: Record) -> tuple[str, ...]:
    parts = _strings(record, "parts")
    if not all(part in POLICY_KEY_PARTS for part in parts):
        raise ConfigError(f"policy_key may only have {', '.join(POLICY_KEY_PARTS)}, not {', '.join(parts)}")
    return tuple(parts)


def _strings(record: Record, name: str) -> list[str]:
    texts = record.body[name]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name} of {record.id} must be a list of strings, not {describe(texts)}")
    return texts
