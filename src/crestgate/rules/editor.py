"""Writes rules, tiers, plans, policies and client limits to a repository, for the command line and the admin API.

Each method is one atomic write, with its audit entries; other processes see it a moment later. The limits of a client
are changed under that client's lock, so concurrent configurations of one client are serialized.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from crestgate.core.redaction import digest_api_key
from crestgate.errors import (
    ConfigError,
    ConflictError,
    CrestgateError,
    NotFoundError,
    StaleVersionError,
    ValidationError,
)
from crestgate.loader.fields import describe
from crestgate.locks.port import LockService
from crestgate.rules.compat.clients import ClientLimit, client_limit_of
from crestgate.rules.compat.policies import Policy, policy_of
from crestgate.rules.compat.rule_ids import derived_id, derived_id_prefix, shorten
from crestgate.rules.diff import Difference, all_records, compare
from crestgate.rules.overrides import override_id, overrides_in, overrides_of
from crestgate.rules.port import Actor, Changes, Edit, Kind, Record, Repository, UnreadableRecord
from crestgate.rules.records import POLICY_IDS, edit_of, last_number_of, plan_body, read_plan, rule_of
from crestgate.rules.rule import ANY, MAX_TIER_BYTES, Rule, is_tier

__all__ = ["Difference", "Editor", "all_records"]

MAX_ATTEMPTS = 10
"""Attempts to number a new policy while other writers do the same."""
MAX_OVERRIDE_SECONDS = 10**10
"""About 300 years, so that its end can be represented."""
RULE = "a rule, such as Rule.read({'name': 'Orders', 'dimension': 'user', 'limit': 100, 'window_seconds': 60})"
POLICY = "a policy, such as Policy('user:42', capacity=100, refill_rate=10)"
CLIENT_LIMIT = "a sequence of limits, such as [ClientLimit('acme', 'DEFAULT', 'GLOBAL', 'MIN', 100)]"

_log = logging.getLogger("crestgate")


class Editor:
    """Writes to a repository in the name of an actor. `locks` are needed only for concurrent writers."""

    def __init__(
        self,
        repository: Repository,
        actor: Actor,
        *,
        locks: LockService[Any] | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        on_write: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_write` is called after each write, to notify others of it."""
        self._repository = repository
        self._actor = actor
        self._locks = locks
        self._on_write = on_write
        self._now_us = now_us

    def rules(self) -> Iterator[Rule]:
        """All rules, ordered by id."""
        return map(rule_of, all_records(self._repository, "rule"))

    def readable_rules(self) -> tuple[Sequence[Rule], Sequence[UnreadableRecord]]:
        """All rules that can be read, ordered by id, and those that cannot."""
        changes = self._repository.changes(0) or Changes(0, True, ())
        rules, unreadable = [], [one for one in changes.unreadable if one.kind == "rule"]
        for record in sorted(changes.records, key=lambda record: record.id.encode("utf-8", "surrogatepass")):
            if record.kind == "rule":
                try:
                    rules.append(rule_of(record))
                except ValidationError as error:
                    unreadable.append(UnreadableRecord(record.kind, record.id, error.problems))
        return rules, unreadable

    def rule(self, rule_id: str) -> Rule:
        return rule_of(self._get("rule", rule_id))

    def create(self, rule: Rule) -> Rule:
        """Add a rule. ConflictError if its id exists, or an equally specific rule in its slot."""
        _check_is(rule, Rule, RULE)
        return self._put(rule, expected=0)

    def replace(self, rule: Rule, expected: int | None = None) -> Rule:
        """Replace a rule; StaleVersionError unless it has the expected version, NotFoundError if there is none."""
        _check_is(rule, Rule, RULE)
        return self._put(rule, self._get("rule", rule.rule_id).version if expected is None else expected)

    def delete(self, rule_id: str, expected: int | None = None) -> None:
        self._write([Edit("rule", rule_id, None, expected)])

    def delete_all(self, rule_ids: Iterable[str]) -> None:
        """Delete several rules in one write; NotFoundError, and none is deleted, if one does not exist."""
        self._write([Edit("rule", rule_id, None) for rule_id in dict.fromkeys(rule_ids)])

    def difference(self, records: Iterable[Record]) -> Difference:
        """How some records, such as those of rule files, differ from those of the repository."""
        return compare(self._repository, records)

    def apply(self, difference: Difference, *, prune: bool = False) -> None:
        """Apply a difference in one write; with `prune`, delete the other rules, too.

        StaleVersionError, and nothing is written, if a record was changed since it was compared.
        """
        edits = difference.edits(prune=prune)
        if not edits:
            return
        try:
            self._write(edits)
        except (ConflictError, NotFoundError, StaleVersionError) as error:
            # A record was created or deleted meanwhile: not an error of the caller.
            if isinstance(error, StaleVersionError) or any(self._version(edit) != edit.expected for edit in edits):
                raise StaleVersionError(f"concurrent write ({error}): nothing was written; try again") from None
            raise

    def set_tier(self, user: str, tier: str | None) -> None:
        """Set the tier of a user; None removes it."""
        if not isinstance(user, str) or not user:
            raise ConfigError(f"the user must be text of at least one character, not {describe(user)}", field="user")
        if tier is not None and not is_tier(tier):
            raise ConfigError(
                f"a tier has a name, such as 'premium', of {MAX_TIER_BYTES} bytes at most, not {tier!r}", field="tier"
            )
        self._write([Edit("tier", user, None if tier is None else {"tier": tier})])

    def override(self, user: str, base: Rule, limit: int, seconds: float) -> Rule:
        """Override the limit of one user in the slot of a rule, for so many seconds. The counters are kept."""
        _check_is(base, Rule, "the rule itself: editor.override('bob', editor.rule('orders'), 500, 3600)")
        if base.dimension != "user":
            raise ConfigError(
                f"rule {base.rule_id!r} is of dimension {base.dimension}: only user rules can be overridden",
                field="base",
            )
        if base.mode == "disabled":
            raise ConfigError(f"rule {base.rule_id!r} is disabled: enable it first", field="base")
        if user == ANY:
            raise ConfigError(
                "an override is for one user: to change the limit for all users, change the rule", field="user"
            )
        if not 0 < seconds <= MAX_OVERRIDE_SECONDS:
            raise ConfigError(
                f"an override must last more than 0 seconds, {MAX_OVERRIDE_SECONDS} at most, not {seconds}",
                field="seconds",
            )
        rule_id = override_id(user, base)
        rule = replace(
            base,
            rule_id=rule_id,
            name=base.name if rule_id == base.rule_id else f"override of {base.rule_id} for {shorten(user)}",
            identifier=user,
            tier=base.tier if base.identifier == user else ANY,  # at least as specific as the base
            limit=limit,
            burst=_scaled_burst(base, limit),
            origin=None,
            expires_us=self._now_us() + round(seconds * 1_000_000),
        )
        # One that was made through another rule of the slot, or has the id of an older version.
        others = [
            Edit("rule", one.rule_id, None, one.version)
            for one in overrides_of(self._repository, user)
            if one.counter == rule.counter and one.rule_id != rule_id
        ]
        return self._put(rule, others=others)

    def undo_override(self, user: str, rule_id: str, base: Rule | None = None) -> Rule:
        """End an override now: that of the rule with this id, or the override with this id itself. With the rule as
        `base` it is also found by its slot. Returns what was deleted; NotFoundError if none is in force. The counters
        are kept."""
        found = overrides_in(overrides_of(self._repository, user), self._now_us())
        names = (rule_id, derived_id("override", user, rule_id))
        chosen = next((one for one in found if one.rule_id in names), None)
        if chosen is None and base is not None:
            chosen = next((one for one in found if one.counter == base.counter), None)
        if chosen is None:
            raise NotFoundError(f"user {user!r} has no override of rule {rule_id!r}")
        self._write([Edit("rule", chosen.rule_id, None, chosen.version)])
        return chosen

    def put_plan(
        self, name: str, limits: object, *, lease: bool = False, create: bool | None = None
    ) -> tuple[str, ...]:
        """Write a plan: `create` a new one, replace an existing one, or (None) either. Returns its limits."""
        read = read_plan(name, limits, lease)
        expected = None if create is None else 0 if create else self._get("plan", name).version
        self._write([Edit("plan", name, plan_body(read), expected)])
        return read.limits

    def delete_plan(self, name: str) -> None:
        self._write([Edit("plan", name, None)])

    def policy(self, key: str) -> Policy:
        record = self._repository.get("rule", derived_id("policy", key))
        found = policy_of(rule_of(record)) if record is not None else None
        if found is None:
            raise NotFoundError(f"there is no policy for key {key!r}")
        return found

    def create_policy(self, policy: Policy) -> Policy:
        """Add a policy, and give it the next number."""
        _check_is(policy, Policy, POLICY)
        for _ in range(MAX_ATTEMPTS):
            counted = self._repository.get("default", POLICY_IDS)
            number = 1 + last_number_of(counted)
            numbered = replace(policy, id=number)
            last = Edit("default", POLICY_IDS, {"last": number}, counted.version if counted is not None else 0)
            try:
                self._write([edit_of(_valid(numbered.rule()), expected=0), last])
            except (StaleVersionError, ConflictError):
                there = self._repository.get("rule", policy.rule_id)
                if there is not None and policy_of(rule_of(there)) is None:
                    raise ConflictError(
                        f"rule {policy.rule_id!r} is not a policy: delete it, or change it as a rule"
                    ) from None
                if there is not None:
                    raise ConflictError(f"there is a policy for key {policy.key!r} already: change that one") from None
                if self._repository.get("default", POLICY_IDS) == counted:
                    raise  # not the number: a rule that is not a policy has its slot
                continue  # another writer took the number
            return numbered
        raise StaleVersionError(
            f"a policy for key {policy.key!r} could not be numbered: too many concurrent writes; try again"
        )

    def replace_policy(self, policy: Policy) -> Policy:
        """Replace a policy; it keeps its number. NotFoundError if there is none."""
        _check_is(policy, Policy, POLICY)
        numbered = replace(policy, id=self.policy(policy.key).id)
        self._put(numbered.rule())
        return numbered

    def delete_policy(self, key: str) -> None:
        self.policy(key)
        self.delete(derived_id("policy", key))

    def client_limits(self, client: str) -> list[ClientLimit]:
        """The configured limits of a client."""
        rules = map(rule_of, all_records(self._repository, "rule", derived_id_prefix("client", client)))
        limits = (client_limit_of(rule) for rule in rules if rule.identifier == client)
        return [limit for limit in limits if limit is not None]

    def configure_client(self, client: str, limits: Sequence[ClientLimit]) -> None:
        """Write these limits of a client, in one write; its others stay as they are."""
        for limit in limits:
            _check_is(limit, ClientLimit, CLIENT_LIMIT)
            if limit.client != client:
                raise ConfigError(f"all limits must be of client {client!r}, and one is of {limit.client!r}")
        with self._client_lock(client):
            self._repository.write([edit_of(_valid(limit.rule())) for limit in limits], self._actor)
        self._on_write()

    def delete_client_limits(self, client: str, names: Sequence[tuple[str, str]]) -> None:
        """Delete limits of a client, by type and name; NotFoundError, and none is deleted, if one does not exist."""
        with self._client_lock(client):
            existing = {(limit.limit_type, limit.limit_name): limit for limit in self.client_limits(client)}
            missing = [name for name in names if name not in existing]
            if missing:
                raise NotFoundError(f"client {client!r} has no limit {' '.join(missing[0])}")
            self._repository.write(
                [Edit("rule", existing[name].rule_id, None) for name in dict.fromkeys(names)], self._actor
            )
        self._on_write()

    def delete_client(self, client: str) -> None:
        """Delete all limits of a client; it has the default limits from then on."""
        with self._client_lock(client):
            limits = self.client_limits(client)
            if not limits:
                raise NotFoundError(f"client {client!r} was never configured")
            self._repository.write([Edit("rule", limit.rule_id, None) for limit in limits], self._actor)
        self._on_write()

    def audit_reset(self, *subjects: str) -> None:
        """Add a completed reset of counters to the audit log."""
        self.note("reset", *subjects)

    def note(self, action: str, *subjects: str) -> None:
        """Add an action on counters to the audit log; an API key is secret, and replaced by a digest."""
        if subjects:
            self._repository.note(self._actor, action, *map(digest_api_key, subjects))

    def audit_outcome(self, action: str, done: bool, *subjects: str) -> None:
        """Add the outcome of an action to the audit log. If that fails, it is logged: it must hide neither the outcome
        nor the error of the action."""
        try:
            self.note(action if done else f"{action} failed", *subjects)
        except CrestgateError as error:
            _log.error("audit log: cannot record that a %s was %s: %s", action, "done" if done else "not done", error)

    @contextmanager
    def resetting(self, *subjects: str) -> Iterator[None]:
        """Reset counters inside this block. The audit log has an entry for the request before it is tried, and one
        for the outcome: what is not in the log was not tried, even if the process is killed in between."""
        self.note("reset requested", *subjects)
        try:
            yield
        except BaseException:
            self.audit_outcome("reset", False, *subjects)
            raise
        self.audit_outcome("reset", True, *subjects)

    def _client_lock(self, client: str) -> AbstractContextManager[object]:
        """Held while the limits of a client are read and written. Notify after it is released."""
        return nullcontext() if self._locks is None else _held(self._locks, f"client:{client}")

    def _get(self, kind: Kind, record_id: str) -> Record:
        record = self._repository.get(kind, record_id)
        if record is None:
            raise NotFoundError(f"there is no {kind} {record_id!r}")
        return record

    def _version(self, edit: Edit) -> int:
        record = self._repository.get(edit.kind, edit.id)
        return record.version if record is not None else 0

    def _put(self, rule: Rule, expected: int | None = None, others: Sequence[Edit] = ()) -> Rule:
        """Write a rule, and `others` with it."""
        rule = _valid(rule)
        record = self._write([edit_of(rule, expected), *others])[0]
        assert record is not None
        return replace(
            rule,
            origin=record.body.get("origin"),
            version=record.version,
            created_us=record.created_us or None,
            updated_us=record.updated_us or None,
        )

    def _write(self, edits: Sequence[Edit]) -> Sequence[Record | None]:
        records = self._repository.write(edits, self._actor)
        self._on_write()
        return records


def _check_is(given: object, expected_type: type, instead: str) -> None:
    if not isinstance(given, expected_type):
        raise TypeError(f"must be {instead}, not {type(given).__name__}")


def _valid(rule: Rule) -> Rule:
    """The rule, validated unless `Rule.read` has; ValidationError if it could not be read back, which would block all
    other rules."""
    return rule if rule.validated else Rule.read(rule.body())


def _scaled_burst(base: Rule, limit: object) -> int | None:
    """The burst of the base, scaled with the limit: a higher limit must not have a smaller burst."""
    if base.burst is None or not base.limit or not isinstance(limit, int) or not limit:
        return None
    return max(-(-base.burst * limit // base.limit), 1)


@contextmanager
def _held(locks: LockService[Any], name: str) -> Iterator[None]:
    """Hold a lock. A timeout is a StaleVersionError: not an error of the caller."""
    try:
        with locks.hold(name):
            yield
    except TimeoutError as error:
        raise StaleVersionError(f"concurrent write: {error}; try again") from None
