"""An explanation as JSON data, the same from the service and from the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.limiter.pending_check import PendingCheck
from crestgate.rules.explanation import Explanation, RuleStatus, RuleVerdict, shown_identifiers
from crestgate.rules.explanation_changes import BindingLimit, Override, changes_of
from crestgate.rules.overrides import is_override, override_id
from crestgate.rules.rule import ANY, Rule
from crestgate.stores.port import Member

__all__ = ["explanation_data"]

INVENTED: Final = ("fail_open", "fail_closed")
"""Reasons of decisions whose numbers are of no counter."""
Counter = tuple[Member, Decision]


def explanation_data(
    pending: PendingCheck,
    decision: Decision,
    explanation: Explanation | None,
    *,
    title: str,
    title_of: Callable[[Member], str],
    show_key: Callable[[str], str],
) -> dict[str, Any]:
    """All members of an explanation but `decision`. `explanation` is None for a key under plans; `title` is that of the
    store, `title_of` that of the store of one counter, and `show_key` says how keys of counters are shown."""
    counters = list(_counters(pending, decision))
    cost = pending.members[0].cost if pending.members else 1
    if explanation is None:
        rules = [_plan_data(member) for member, _ in counters]
        limits = [BindingLimit(member.algorithm.label, part, False, None) for member, part in counters]
        considered, truncated = len(rules), False
    else:
        rules = [_rule_data(verdict) for verdict in explanation.verdicts]
        limits = [
            BindingLimit(member.algorithm.label, part, True, _override_of(member, explanation))
            for member, part in counters
            if member.binds
        ]
        considered, truncated = explanation.considered, explanation.truncated
    for rule, (member, part) in zip(rules, counters, strict=False):
        if part.reason in INVENTED:
            rule["reason"] += f"; its store did not answer: {part.reason} by on_store_error"
            continue
        store = title_of(member) if part.reason != "fallback" else "this process (on_store_error: local)"
        rule["counter"] = _counter_data(show_key(member.key), part, store)
    return {
        "rules": rules,
        "considered": considered,
        "truncated": truncated,
        "store": title,
        "changes": changes_of(decision, limits, cost),
    }


def _counters(pending: PendingCheck, decision: Decision) -> Iterator[Counter]:
    """Each counter with what it decided; the first ones are those of an explanation, in its order."""
    if not pending.applies:
        return
    parts: Sequence[Decision] = decision.parts
    order = pending.order
    binding, shadows = 0, 0
    for member in pending.members:
        if not member.binds:
            yield member, decision.shadows[shadows]
            shadows += 1
            continue
        yield member, parts[binding if order is None else order.index(binding)]
        binding += 1


def _rule_data(verdict: RuleVerdict) -> dict[str, Any]:
    rule = verdict.rule
    identifiers = shown_identifiers(rule)
    data: dict[str, Any] = {"rule_id": rule.rule_id, "name": rule.name}
    data["dimension"] = list(rule.dimensions) if rule.is_composite else rule.dimension
    data["identifier"] = identifiers if rule.is_composite and rule.identifier != ANY else identifiers[0]
    data.update({name: getattr(rule, name) for name in ("endpoint_pattern", "method", "tier", "mode")})
    verdict_data = _verdict_data(verdict.status, verdict.reason, verdict.lost_to)
    return {**data, **_limit_data(rule.compiled()), **verdict_data}


def _plan_data(member: Member) -> dict[str, Any]:
    label = member.algorithm.label
    return {
        "rule_id": label,
        "name": label,
        "dimension": "key",
        "identifier": ANY,
        "endpoint_pattern": ANY,
        "method": ANY,
        "tier": ANY,
        "mode": "enforce",
        **_limit_data(member.algorithm.limit),
        **_verdict_data("applies", "a plan that the request names", None),
    }


def _limit_data(limit: Limit) -> dict[str, Any]:
    data: dict[str, Any] = {"limit": str(limit)}
    return {**data, "lease": True} if limit.lease else data


def _verdict_data(status: RuleStatus, reason: str, lost_to: str | None) -> dict[str, Any]:
    return {"status": status, "reason": reason, "lost_to": lost_to, "counter": None}


def _counter_data(key: str, part: Decision, store: str) -> dict[str, Any]:
    return {
        "key": key,
        "limit": part.limit,
        "remaining": part.remaining,
        "used": part.limit - part.remaining,
        "reset_after": part.reset_after,
        "state": part.state,
        "store": store,
    }


def _override_of(member: Member, explanation: Explanation) -> Override | None:
    """The override that would raise a limit: of its rule; if that is an override itself, of the base, if it is known.
    None for a rule of another dimension, and for one that ends and would win over an override until then."""
    user = member.key.partition(":")[2]
    rules = (one.rule for one in explanation.verdicts if one.rule.rule_id == member.algorithm.label)
    rule = next(rules, None)
    if rule is None or rule.dimension != "user":
        return None
    if is_override(rule):
        lost = (one.rule for one in explanation.verdicts if one.lost_to == rule.rule_id)
        return Override(user, next((base for base in lost if _is_base(base, rule, user)), rule))
    ends = rule.identifier != ANY and rule.expires_us is not None
    return None if ends else Override(user, rule)


def _is_base(base: Rule, override: Rule, user: str) -> bool:
    return not is_override(base) and override_id(user, base) == override.rule_id
