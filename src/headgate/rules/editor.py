"""Changing rules: what an operator, the command line and an admin API do to a repository.

Each method is one write: all of it happens or nothing does, with its audit entries, and every process knows of it a
moment later. A client's limits are changed under that client's lock, so that two who configure one client come one
after the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from headgate.core.masking import without_secrets
from headgate.errors import ConfigError, Conflict, HeadgateError, NotFound, Stale
from headgate.locks.port import LockService
from headgate.reading.fields import kind_of
from headgate.rules.comparing import Difference, all_records, compare
from headgate.rules.records import POLICY_IDS, edit_of, last_number_of, read_plan, rule_of
from headgate.rules.repositories.port import Actor, Edit, Kind, Record, Repository
from headgate.rules.rule import ANY, MOST_TIER_BYTES, Rule, is_tier
from headgate.rules.views.clients import ClientLimit, client_limit_of
from headgate.rules.views.ids import shown, view_id, view_prefix
from headgate.rules.views.policies import Policy, policy_of

__all__ = ["Difference", "Editor", "all_records"]

TRIES = 10
"""How often a number for a new policy is asked for while others do the same."""
LONGEST_OVERRIDE = 10**10
"""Seconds: some three centuries, so that its end can be written down."""
RULE = "a rule, which Rule.read({'name': 'Orders', 'dimension': 'user', 'limit': 100, 'window_seconds': 60}) makes"
POLICY = "a policy, as Policy('user:42', capacity=100, refill_rate=10)"
CLIENT_LIMIT = "a sequence of limits, as [ClientLimit('acme', 'DEFAULT', 'GLOBAL', 'MIN', 100)]"

_log = logging.getLogger("headgate")


class Editor:
    """Writes to a repository in the name of somebody. `locks` are needed only where several write at once."""

    def __init__(
        self,
        repository: Repository,
        actor: Actor,
        *,
        locks: LockService[Any] | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._repository = repository
        self._actor = actor
        self._locks = locks
        self._now_us = now_us

    def rules(self) -> Iterator[Rule]:
        """All rules there are, in the order of their ids."""
        return map(rule_of, all_records(self._repository, "rule"))

    def rule(self, rule_id: str) -> Rule:
        return rule_of(self._found("rule", rule_id))

    def create(self, rule: Rule) -> Rule:
        """Add a rule. Conflict when there is one of its id, or one as specific in its slot."""
        _check_is(rule, Rule, RULE)
        return self._put(_readable(rule, expected=0))

    def replace(self, rule: Rule, expected: int | None = None) -> Rule:
        """Write a rule anew; Stale unless it still has the expected version. NotFound when there is none."""
        _check_is(rule, Rule, RULE)
        return self._put(_readable(rule, self._found("rule", rule.rule_id).version if expected is None else expected))

    def delete(self, rule_id: str, expected: int | None = None) -> None:
        self._write([Edit("rule", rule_id, None, expected)])

    def delete_all(self, rule_ids: Iterable[str]) -> None:
        """Delete several rules in one write; NotFound, and none is deleted, if one is not there."""
        self._write([Edit("rule", rule_id, None) for rule_id in dict.fromkeys(rule_ids)])

    def difference(self, records: Iterable[Record]) -> Difference:
        """How some records, those of rule files for example, differ from those of the repository."""
        return compare(self._repository, records)

    def apply(self, difference: Difference, *, prune: bool = False) -> None:
        """Carry out a difference, in one write; with `prune`, delete the other rules, too.

        Stale when somebody else wrote since it was found: nothing was written then.
        """
        edits = difference.edits(prune=prune)
        if not edits:
            return
        try:
            self._write(edits)
        except (Conflict, NotFound, Stale) as error:
            # What was not there is there, or the other way round: then it is nothing that the caller wrote.
            if isinstance(error, Stale) or any(self._version(edit) != edit.expected for edit in edits):
                raise Stale(f"somebody else wrote at the same time ({error}): nothing was written; try again") from None
            raise

    def set_tier(self, user: str, tier: str | None) -> None:
        """Put a user into a tier; None takes it out of any."""
        if not isinstance(user, str) or not user:
            raise ConfigError(f"a tier is that of a user, who has a name, not {kind_of(user)}")
        if tier is not None and not is_tier(tier):
            raise ConfigError(f"a tier has a name, such as 'premium', of {MOST_TIER_BYTES} bytes at most, not {tier!r}")
        self._write([Edit("tier", user, None if tier is None else {"tier": tier})])

    def override(self, user: str, base: Rule, limit: int, seconds: float) -> Rule:
        """Hold one user to another limit in the slot of a rule, for so long. The counters go on."""
        _check_is(base, Rule, "the rule itself: editor.override('bob', editor.rule('orders'), 500, 3600)")
        if base.dimension != "user":
            raise ConfigError(f"rule {base.rule_id!r} is of dimension {base.dimension}: only a user's is overridden so")
        if base.mode == "disabled":
            raise ConfigError(f"rule {base.rule_id!r} is disabled, and holds nobody to anything: enable it first")
        if user == ANY:
            raise ConfigError("an override is for one user: to change the limit of all, change the rule")
        if not 0 < seconds <= LONGEST_OVERRIDE:
            raise ConfigError(
                f"an override lasts a number of seconds above 0, {LONGEST_OVERRIDE} at most, not {seconds}"
            )
        rule = replace(
            base,
            rule_id=view_id("override", user, base.counter),
            name=f"override of {base.rule_id} for {shown(user)}",
            identifier=user,
            tier=base.tier if base.identifier == user else ANY,  # as specific as what it is to win over, at least
            limit=limit,
            burst=_scaled(base, limit),
            origin=None,
            expires_us=self._now_us() + round(seconds * 1_000_000),
        )
        return self._put(_readable(rule))

    def put_plan(self, name: str, limits: object, *, create: bool | None = None) -> tuple[str, ...]:
        """Write a plan: a new one, one that is there, or (None) whichever."""
        read = read_plan(name, limits)
        expected = None if create is None else 0 if create else self._found("plan", name).version
        self._write([Edit("plan", name, {"limits": list(read)}, expected)])
        return read

    def delete_plan(self, name: str) -> None:
        self._write([Edit("plan", name, None)])

    def policy(self, key: str) -> Policy:
        record = self._repository.get("rule", view_id("policy", key))
        found = policy_of(rule_of(record)) if record is not None else None
        if found is None:
            raise NotFound(f"there is no policy for key {key!r}")
        return found

    def create_policy(self, policy: Policy) -> Policy:
        """Add a policy, and give it the next number."""
        _check_is(policy, Policy, POLICY)
        for _ in range(TRIES):
            counted = self._repository.get("default", POLICY_IDS)
            number = 1 + last_number_of(counted)
            made = replace(policy, id=number)
            last = Edit("default", POLICY_IDS, {"last": number}, counted.version if counted is not None else 0)
            try:
                self._write([_readable(made.rule(), expected=0), last])
            except (Stale, Conflict):
                there = self._repository.get("rule", policy.rule_id)
                if there is not None and policy_of(rule_of(there)) is None:
                    raise Conflict(f"rule {policy.rule_id!r} is no policy: delete it, or change it as a rule") from None
                if there is not None:
                    raise Conflict(f"there is a policy for key {policy.key!r} already: change that one") from None
                if self._repository.get("default", POLICY_IDS) == counted:
                    raise  # it is not the number: a rule that is no policy has its place
                continue  # somebody else took the number
            return made
        raise Stale(f"a policy for key {policy.key!r} could not be numbered: too many are made at once; try again")

    def replace_policy(self, policy: Policy) -> Policy:
        """Write a policy anew; it keeps its number. NotFound when there is none."""
        _check_is(policy, Policy, POLICY)
        made = replace(policy, id=self.policy(policy.key).id)
        self._put(_readable(made.rule()))
        return made

    def delete_policy(self, key: str) -> None:
        self.policy(key)
        self.delete(view_id("policy", key))

    def client_limits(self, client: str) -> list[ClientLimit]:
        """The limits that a client was configured with."""
        rules = map(rule_of, all_records(self._repository, "rule", view_prefix("client", client)))
        limits = (client_limit_of(rule) for rule in rules if rule.identifier == client)
        return [limit for limit in limits if limit is not None]

    def configure_client(self, client: str, limits: Sequence[ClientLimit]) -> None:
        """Write these limits of a client, in one write; its others stay as they are."""
        for limit in limits:
            _check_is(limit, ClientLimit, CLIENT_LIMIT)
            if limit.client != client:
                raise ConfigError(f"the limits of client {client!r} are written, and one is of {limit.client!r}")
        with self._alone(client):
            self._write([_readable(limit.rule()) for limit in limits])

    def delete_client_limits(self, client: str, names: Sequence[tuple[str, str]]) -> None:
        """Delete limits of a client, by type and name; NotFound, and none is deleted, if one is not there."""
        with self._alone(client):
            kept = {(limit.limit_type, limit.limit_name): limit for limit in self.client_limits(client)}
            missing = [name for name in names if name not in kept]
            if missing:
                raise NotFound(f"client {client!r} has no limit {' '.join(missing[0])}")
            self._write([Edit("rule", kept[name].rule_id, None) for name in dict.fromkeys(names)])

    def delete_client(self, client: str) -> None:
        """Delete all that a client was configured with; from then on it has the default limits."""
        with self._alone(client):
            limits = self.client_limits(client)
            if not limits:
                raise NotFound(f"client {client!r} was never configured")
            self._write([Edit("rule", limit.rule_id, None) for limit in limits])

    def note_reset(self, *subjects: str) -> None:
        """Put a reset of counters that was done into the audit log."""
        self.note("reset", *subjects)

    def note(self, action: str, *subjects: str) -> None:
        """Put what is done to counters into the audit log; an API key is secret, and a digest stands there for it."""
        if subjects:
            self._repository.note(self._actor, action, *map(without_secrets, subjects))

    def note_outcome(self, action: str, done: bool, *subjects: str) -> None:
        """Put what came of it into the audit log. It is done or not, whether or not the log can be written: an error
        is logged, and hides neither the outcome nor the error that kept it from being done."""
        try:
            self.note(action if done else f"{action} failed", *subjects)
        except HeadgateError as error:
            _log.error("audit log: cannot write that a %s was %s: %s", action, "done" if done else "not done", error)

    @contextmanager
    def resetting(self, *subjects: str) -> Iterator[None]:
        """Reset counters inside this block. The audit log has that it was requested before it is tried, and then
        whether it was done or failed: what is not in the log was not tried, whoever is killed in between."""
        self.note("reset requested", *subjects)
        try:
            yield
        except BaseException:
            self.note_outcome("reset", False, *subjects)
            raise
        self.note_outcome("reset", True, *subjects)

    def _alone(self, client: str) -> AbstractContextManager[object]:
        return nullcontext() if self._locks is None else _held(self._locks, f"client:{client}")

    def _found(self, kind: Kind, record_id: str) -> Record:
        record = self._repository.get(kind, record_id)
        if record is None:
            raise NotFound(f"there is no {kind} {record_id!r}")
        return record

    def _version(self, edit: Edit) -> int:
        record = self._repository.get(edit.kind, edit.id)
        return record.version if record is not None else 0

    def _put(self, edit: Edit) -> Rule:
        (record,) = self._write([edit])
        assert record is not None
        return rule_of(record)

    def _write(self, edits: Sequence[Edit]) -> Sequence[Record | None]:
        return self._repository.write(edits, self._actor)


def _check_is(given: object, wanted: type, instead: str) -> None:
    if not isinstance(given, wanted):
        raise TypeError(f"give {instead}; not {type(given).__name__}")


def _readable(rule: Rule, expected: int | None = None) -> Edit:
    """What writes a rule; Invalid for one that could not be read again, and would keep all others from being read."""
    return edit_of(Rule.read(rule.body()), expected)


def _scaled(base: Rule, limit: object) -> int | None:
    """A burst that is to the limit as the base's is to its own: a higher limit must not let less through at once."""
    if base.burst is None or not base.limit or not isinstance(limit, int) or not limit:
        return None
    return max(-(-base.burst * limit // base.limit), 1)


@contextmanager
def _held(locks: LockService[Any], name: str) -> Iterator[None]:
    """Alone with what the lock is for. Somebody who holds it for too long is nothing that the caller did wrong."""
    try:
        with locks.hold(name):
            yield
    except TimeoutError as error:
        raise Stale(f"somebody else is changing the same: {error}; try again") from None
