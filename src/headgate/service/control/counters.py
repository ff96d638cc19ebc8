"""Live counters: how the rules of a subject stand now, all in one round trip, and forgetting them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.core.decision import Decision
from headgate.embedded.async_limiter import AsyncLimiter
from headgate.errors import StoreError
from headgate.rules.ruleset import Chosen
from headgate.stores.port import Member, Op, Request

__all__ = ["forget", "numbers", "standing"]


async def standing(limiter: AsyncLimiter, chosen: Sequence[Chosen]) -> list[Decision]:
    """How these counters stand; nothing is consumed. StoreError when the store does not answer, whatever rules do
    then with requests: numbers that were made up are worse than none."""
    if not chosen:
        return []
    replies = await limiter._apply([Request(Op.PEEK, [_member(one, "closed")]) for one in chosen])
    decisions = [outcome.decision for (outcome,) in replies]
    if any(decision.reason == "fail_closed" for decision in decisions):
        raise StoreError("the store of the counters does not answer: try again")
    return [limiter._engine.standing(key, decision) for (key, _), decision in zip(chosen, decisions, strict=True)]


async def forget(limiter: AsyncLimiter, chosen: Sequence[Chosen]) -> None:
    """Forget these counters; StoreError when the store does not answer, and then they are as they were."""
    if chosen:
        await limiter._apply([Request(Op.RESET, [_member(one, None) for one in chosen])])
        limiter._rules().forgotten(chosen)


def numbers(decision: Decision) -> dict[str, Any]:
    """The numbers of a counter, by the names that a check answers with."""
    return {
        "limit": decision.limit,
        "remaining": decision.remaining,
        "current_count": decision.limit - decision.remaining,
        "reset_after": decision.reset_after,
        "state": decision.state,
    }


def _member(chosen: Chosen, policy: str | None) -> Member:
    key, entry = chosen
    return Member(key, entry.algorithm, 0, True, 0, 0, policy)
