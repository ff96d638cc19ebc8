"""Batches of plain checks, a slice at a time: see slices.py.

All checks are prepared before the first is decided, because a mistake in one of them refuses the whole batch, and then
nothing may have been counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headgate.core.decision import Decision
from headgate.embedded.asking import Prepared, PreparedChain, Simple
from headgate.service.asgi import BadRequest, Call
from headgate.service.data.answers import encode
from headgate.service.data.shapes import Answer, CheckBody
from headgate.service.data.slices import (
    LOCAL_SLICE,
    MEMBER_SLICE,
    REMOTE_SLICE,
    decisions_of,
    groups,
    next_turn,
    slice_end,
    weigh,
)

if TYPE_CHECKING:
    from headgate.service.data.plane import DataPlane

__all__ = ["answer_slices", "decide_slices", "encode_slices", "prepare_slices"]

ENCODE_SLICE: Final = 128


class Slice:
    """Some checks of a batch: the simplest, or prepared for the store."""

    def __init__(self, checks: Sequence[CheckBody], first: int) -> None:
        self.checks = checks
        self.first = first
        """The place of its first check in the batch."""
        self.simple: Simple | None = None
        self.prepared: list[Prepared | PreparedChain] = []


async def prepare_slices(plane: DataPlane, checks: Sequence[CheckBody]) -> list[Prepared | PreparedChain]:
    """What is to be asked about each check of a batch that is decided in one step."""
    prepared: list[Prepared | PreparedChain] = []
    members = 0
    first = 0
    while first < len(checks):
        if first:
            await next_turn()
        end = slice_end(checks, first, LOCAL_SLICE)
        members = plane.prepare(checks[first:end], first, members, True, prepared)
        first = end
    return prepared


async def decide_slices(plane: DataPlane, call: Call, checks: Sequence[CheckBody]) -> list[Answer]:
    """The answers to a batch of plain checks, each for itself."""
    size = LOCAL_SLICE if plane.limiter.answers_at_once else REMOTE_SLICE
    weight = weigh(checks)
    plane.afford(weight)
    slices: list[Slice] = []
    try:
        await _prepare(plane, checks, size, slices)
    except BadRequest:
        plane.refund(weight)
        raise
    answers: list[Answer] = []
    with plane.span(call, "batch"):
        for some in slices:
            if answers:
                await next_turn()
            await _decide(plane, call, some, MEMBER_SLICE if size == LOCAL_SLICE else size, answers)
    return answers


async def _prepare(plane: DataPlane, checks: Sequence[CheckBody], size: int, slices: list[Slice]) -> None:
    """Add slices of about this many checks, ready to be decided."""
    members = first = 0
    while first < len(checks):
        if first:
            await next_turn()
        end = slice_end(checks, first, size)
        some = Slice(checks[first:end], first)
        some.simple = plane.simple(some.checks, first) if plane.quick else None
        if some.simple is None:
            members = plane.prepare(some.checks, first, members, True, some.prepared)
        slices.append(some)
        first = end


async def encode_slices(answers: Sequence[Answer]) -> bytes:
    """The body of an answer with these decisions."""
    pieces = [encode(answers[:ENCODE_SLICE])]
    for first in range(ENCODE_SLICE, len(answers), ENCODE_SLICE):
        await next_turn()
        pieces.append(encode(answers[first : first + ENCODE_SLICE]))
    return decisions_of(pieces)


async def answer_slices(
    plane: DataPlane,
    call: Call,
    checks: Sequence[CheckBody],
    prepared: Sequence[Prepared | PreparedChain],
    decisions: Sequence[Decision],
    now_us: int,
) -> list[Answer]:
    """Count and say decisions that were made in one step."""
    answers: list[Answer] = []
    for start, end in groups([one.request for one in prepared], MEMBER_SLICE):
        if start:
            await next_turn()
            plane.tally.at(now_us)
        answers += plane.answers(call, checks[start:end], prepared[start:end], decisions[start:end], now_us)
    return answers


async def _decide(plane: DataPlane, call: Call, some: Slice, size: int, answers: list[Answer]) -> None:
    now_us = plane.clock.ticks()
    plane.tally.at(now_us)
    checks = some.checks
    if some.simple is not None:
        taken = plane.limiter.take_simple(some.simple)
        if taken is not None:
            plane.answer_taken(call, checks, taken, now_us, answers)
            return
        plane.prepare(checks, some.first, 0, True, some.prepared)
    prepared = some.prepared
    for start, end in groups([one.request for one in prepared], size):
        if start:
            await next_turn()
            now_us = plane.clock.ticks()
            plane.tally.at(now_us)
        decisions = await plane.limiter.decide(prepared[start:end])
        assert decisions is not None
        answers += plane.answers(call, checks[start:end], prepared[start:end], decisions, now_us)
