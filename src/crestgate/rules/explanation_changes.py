"""What would change a decision, in sentences: for whoever has to let a request through, or to stop it.

Each sentence is enough by itself: where several rules deny, it names all of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final, NamedTuple

from crestgate.core.decision import Decision
from crestgate.rules.rule import Rule

__all__ = ["BindingLimit", "Override", "changes_of"]

POLICY_REASONS: Final = ("fail_open", "fail_closed", "fallback")
OVERRIDE_TIME: Final = "2h"


class Override(NamedTuple):
    """Whose limit an override would raise, and of which rule."""

    user: str
    base: Rule


class BindingLimit(NamedTuple):
    """A limit of the chain, and what it decided."""

    name: str
    """The rule_id, or the plan."""
    decision: Decision
    is_rule: bool
    override: Override | None
    """The override that would raise it, if it is a rule for users."""


def changes_of(decision: Decision, limits: Sequence[BindingLimit], cost: int) -> list[str]:
    """What would change this decision, about a request of this cost."""
    changes: list[str] = []
    if decision.reason in POLICY_REASONS or any(one.decision.reason in POLICY_REASONS for one in limits):
        changes.append("an answer of the store: the failure policy (on_store_error) decided in its place")
    if decision.allowed:
        return changes + _denials(decision, limits, cost)
    return changes + _admissions([one for one in limits if not one.decision.allowed], cost)


def _denials(decision: Decision, limits: Sequence[BindingLimit], cost: int) -> list[str]:
    """What would deny an allowed request."""
    changes: list[str] = []
    if not limits:
        changes.append("a rule that matches this request")
    counted = [one for one in limits if one.decision.reason not in ("fail_open", "fail_closed")]
    if counted and cost:
        least = min(counted, key=lambda one: one.decision.remaining)
        passes = least.decision.remaining // cost
        noun = "request" if passes == 1 else "requests"
        changes.append(f"more than {passes} {noun} of cost {cost} from now on: {_kind(least)} {least.name} denies then")
    shadows = [shadow.name for shadow in decision.shadows if not shadow.allowed]
    return changes + [f"shadow rule {name} in mode enforce: it would deny this request" for name in shadows]


def _admissions(denied: Sequence[BindingLimit], cost: int) -> list[str]:
    """What would admit a denied request."""
    changes: list[str] = []
    counted = [one for one in denied if one.decision.reason != "fail_closed"]
    waits = [one.decision.wait_us for one in denied]
    longest = max((wait for wait in waits if wait is not None), default=0)
    if counted and None not in waits:
        changes.append(f"a wait of {longest / 1_000_000:.6g} s, if nothing else comes meanwhile")
    if not counted or len(counted) < len(denied):
        return changes
    least = min(one.decision.remaining for one in counted)
    if 0 < least < cost:
        changes.append(f"a cost of at most {least}, not {cost}")
    raised = [f"{_kind(one)} {one.name} {_raise(one)} {_needed(one, cost)}" for one in counted]
    changes.append(" and ".join(raised) + (" (all of them)" if len(raised) > 1 else ""))
    overrides = [(one.override, _needed(one, cost)) for one in counted if one.override is not None]
    if len(overrides) == len(counted):
        commands = [_command(override, capacity) for override, capacity in overrides]
        changes.append(f"an override for user {overrides[0][0].user}: {' && '.join(commands)}")
    if all(one.is_rule for one in counted):
        names = " and ".join(one.name for one in counted)
        changes.append(f"{'rule' if len(counted) == 1 else 'rules'} {names} in mode shadow or disabled")
    if None not in waits:
        changes.append("a reset of its counters: POST /api/v1/reset, or crestgate reset")
    return changes


def _needed(limit: BindingLimit, cost: int) -> int:
    """The capacity that would admit this cost now: what is used stays used."""
    decision = limit.decision
    return max(decision.limit - decision.remaining + cost, decision.limit + 1)


def _command(override: Override, capacity: int) -> str:
    """The command for an override of this capacity. It names a count, with which the burst of the base is scaled."""
    base = override.base
    count = capacity
    if base.burst is not None and base.limit:
        count = (capacity - 1) * base.limit // base.burst + 1  # the smallest whose scaled burst is not below it
    return shlex.join(["crestgate", "override", override.user, base.rule_id, str(count), "--for", OVERRIDE_TIME])


def _raise(limit: BindingLimit) -> str:
    """Where its capacity is its burst, only a greater burst admits more at once."""
    rule = limit.decision.algorithm.limit
    return "raised to at least" if limit.decision.limit == rule.count else "with a burst of at least"


def _kind(limit: BindingLimit) -> str:
    return "rule" if limit.is_rule else "plan"
