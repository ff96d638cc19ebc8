"""Live counters of a subject: read or reset them in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crestgate.core.decision import Decision
from crestgate.errors import StoreError
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.rules.ruleset import ResolvedRule
from crestgate.stores.port import Member, Op

__all__ = ["numbers", "read_counters", "reset_counters"]


async def read_counters(limiter: AsyncLimiter, chosen: Sequence[ResolvedRule]) -> list[Decision]:
    """The state of these counters; nothing is consumed. StoreError if the store is unavailable, whatever the failure
    policy of the rules: invented numbers are worse than none."""
    if not chosen:
        return []
    checks = [limiter.prepare_counters(Op.PEEK, [_member(one, "closed")]) for one in chosen]
    decisions = await limiter.decide(checks)
    if any(decision.reason == "fail_closed" for decision in decisions):
        raise StoreError("the store of the counters is unavailable: try again")
    return decisions


async def reset_counters(limiter: AsyncLimiter, chosen: Sequence[ResolvedRule]) -> None:
    """Reset these counters; StoreError, and nothing is changed, if the store is unavailable."""
    if chosen:
        await limiter.decide([limiter.prepare_counters(Op.RESET, [_member(one, None) for one in chosen])])


def numbers(decision: Decision) -> dict[str, Any]:
    """The numbers of a counter, with the field names of a check response."""
    return {
        "limit": decision.limit,
        "remaining": decision.remaining,
        "current_count": decision.limit - decision.remaining,
        "reset_after": decision.reset_after,
        "state": decision.state,
    }


def _member(chosen: ResolvedRule, policy: str | None) -> Member:
    key, entry = chosen
    return Member(key, entry.algorithm, 0, True, 0, 0, policy)
