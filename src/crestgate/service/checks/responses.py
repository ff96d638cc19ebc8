# mypyc: compile
"""Decisions as JSON: those just made, and those that are replayed (see idempotency.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from crestgate.core.decision import Decision
from crestgate.core.pressure import NORMAL
from crestgate.service.checks.schemas import DecisionBody
from crestgate.service.checks.slices import next_turn

__all__ = ["answer_of", "encode", "encode_batch", "join_decisions"]

ENCODE_SLICE: Final = 128
"""Answers that are encoded in one turn of the event loop."""

encode: Final = msgspec.json.Encoder().encode


def answer_of(decision: Decision, now_us: int) -> DecisionBody:
    """The answer to a check that was decided at this time."""
    answer = _numbers(decision, now_us)
    detail = decision.detail
    if detail is not None:
        parts = detail.parts
        if parts is not None and len(parts) > 1:
            answer.parts = [_numbers(part, now_us) for part in parts]
        if detail.shadows:
            answer.shadows = [_numbers(shadow, now_us) for shadow in detail.shadows]
    return answer


def _numbers(decision: Decision, now_us: int) -> DecisionBody:
    algorithm = decision.algorithm
    detail = decision.detail
    remaining = decision.remaining
    allowed = decision.allowed
    limit = algorithm.capacity
    reset_us = decision.reset_us
    reason = "ok" if allowed and detail is None else decision.reason
    answer = DecisionBody(
        allowed,
        limit,
        remaining,
        limit - remaining,
        -(-(now_us + reset_us) // 1_000_000),
        reset_us / 1_000_000,
        None if allowed else decision.retry_after,
        reason,
        None if reason == "no_rule" else algorithm.label or None,  # only shadow rules match: none decided
        NORMAL if detail is None else detail.state,
        0.0 if detail is None and not decision.wait_us else decision.delay,
    )
    position = decision.queue_position
    if position is not None:
        answer.queue_position = position
    if not algorithm.in_headers:
        answer.headers = False
    return answer


def join_decisions(slices: Sequence[bytes]) -> bytes:
    """The body of a response, from encoded lists of decisions."""
    return b'{"decisions":[%b]}' % b",".join([piece[1:-1] for piece in slices])


async def encode_batch(answers: Sequence[Any]) -> bytes:
    """The body of a response with many decisions, encoded in several turns of the event loop."""
    slices = [encode(answers[:ENCODE_SLICE])]
    for first in range(ENCODE_SLICE, len(answers), ENCODE_SLICE):
        await next_turn()
        slices.append(encode(answers[first : first + ENCODE_SLICE]))
    return join_decisions(slices)
