"""A decision as JSON. The same for a decision just made and for one that was kept (see repeats.py)."""

from __future__ import annotations

from typing import Final

import msgspec

from headgate.core.decision import Decision
from headgate.service.data.shapes import Answer

__all__ = ["answer_of", "encode"]

encode: Final = msgspec.json.Encoder().encode


def answer_of(decision: Decision, now_us: int) -> Answer:
    """What a decision, made at this moment, is answered with."""
    answer = _one(decision, now_us)
    detail = decision._detail
    if detail is not None:
        parts = detail.parts
        if parts is not None and len(parts) > 1:
            answer.parts = [_one(part, now_us) for part in parts]
        if detail.shadows:
            answer.shadows = [_one(shadow, now_us) for shadow in detail.shadows]
    return answer


def _one(decision: Decision, now_us: int) -> Answer:
    remaining = decision._remaining
    limit = decision.limit
    reset = decision._reset
    allowed = decision._allowed
    reason = decision.reason
    answer = Answer(
        allowed,
        limit,
        remaining,
        limit - remaining,
        -(-(now_us + reset) // 1_000_000),
        reset / 1_000_000,
        None if allowed else decision.retry_after,
        reason,
        None if reason == "no_rule" else decision.name,
        decision.state,
        decision.delay,
    )
    position = decision.queue_position
    if position is not None:
        answer.queue_position = position
    return answer
