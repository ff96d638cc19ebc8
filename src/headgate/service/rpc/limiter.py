"""headgate.v1.RateLimiter: the checks of HTTP as messages. What they mean, count and answer is the data plane's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, Final, final

from headgate.service.asgi import Call
from headgate.service.data.bodies import MOST_CHECKS, MOST_PLANS, prepare, way, wrong
from headgate.service.data.plane import DataPlane
from headgate.service.data.shapes import Answer, BatchBody, CheckBody
from headgate.service.data.slices import LOCAL_SLICE, MAX_AT_ONCE_BYTES, next_turn
from headgate.service.rpc.descriptors import ENTRIES, MOST_RESET
from headgate.service.rpc.field_counts import Repeated, check_counts
from headgate.service.rpc.messages import (
    CheckBatchRequest,
    CheckBatchResponse,
    CheckRequest,
    CheckResponse,
    Dimension,
    LimitStatus,
    QuotaRequest,
    QuotaResponse,
    ResetCounter,
    ResetRequest,
    ResetResponse,
)
from headgate.stores.port import Member, Op

__all__ = ["ForgetDescriptors", "RateLimiter"]

ForgetDescriptors = Callable[[Call, str, Sequence[Any]], Awaitable[Sequence[Member]]]
"""Forgets the counters of Envoy's descriptors in a domain, and tells which they were."""

NEVER: Final = -1
FORMS: Final = "set dimension and identifier, with endpoint and method, or key, with plans"
DIMENSIONS: Final = ", ".join([name for number, name in Dimension.items() if number])
SPLIT: Final = "send them in several batches"
CHECKS: Final = Repeated(1, "checks", MOST_CHECKS, SPLIT)
PLANS: Final = Repeated(7, "plans", MOST_PLANS, "send fewer")
PLANS_OF_ALL: Final = Repeated(7, "plans", MOST_CHECKS * MOST_PLANS, SPLIT)
DESCRIPTORS: Final = Repeated(10, "descriptors", MOST_RESET, "send fewer")

_read_check: Final[Any] = CheckRequest.FromString
_read_batch: Final[Any] = CheckBatchRequest.FromString
_read_quota: Final[Any] = QuotaRequest.FromString
_read_reset: Final[Any] = ResetRequest.FromString


@final
class RateLimiter:
    """Answers its methods in one worker. Each takes the bytes of a message, and gives those of the answer."""

    def __init__(self, plane: DataPlane, forget_descriptors: ForgetDescriptors) -> None:
        """`forget_descriptors` is for resets by domain, of limits on Envoy's descriptors."""
        self.plane = plane
        self.forget_descriptors = forget_descriptors

    def check_at_once(self, call: Call, message: bytes) -> bytes | None:
        """`check`, where nothing has to be waited for."""
        plane = self.plane
        if not plane.is_quick(call):
            return None
        started = perf_counter()
        check_counts(message, PLANS)
        answers = plane.take_at_once(call, [asked_of(_read_check(message), "")], False)
        if answers is None:
            return None
        plane.tally.timed(perf_counter() - started)
        return encoded(whole(CheckResponse, answers[0]))

    async def check(self, call: Call, message: bytes) -> bytes:
        """CheckRateLimit."""
        started = perf_counter()
        check_counts(message, PLANS)
        answer = await self.plane.take(call, asked_of(_read_check(message), ""))
        self.plane.tally.timed(perf_counter() - started)
        return encoded(whole(CheckResponse, answer))

    def batch_at_once(self, call: Call, message: bytes) -> bytes | None:
        """`batch`, where nothing has to be waited for."""
        plane = self.plane
        if len(message) > MAX_AT_ONCE_BYTES or not plane.is_quick(call):
            return None
        started = perf_counter()
        checks = checks_of(message)
        answers = plane.take_at_once(call, checks, True)
        if answers is None:
            return None
        return self._batch_answer([whole(CheckResponse, answer) for answer in answers], started)

    async def batch(self, call: Call, message: bytes) -> bytes:
        """CheckRateLimitBatch."""
        started = perf_counter()
        answers = await self.plane.take_batch(call, BatchBody(checks_of(message)))
        decisions: list[Any] = []
        for first in range(0, len(answers), LOCAL_SLICE):
            if first:
                await next_turn()
            decisions += [whole(CheckResponse, answer) for answer in answers[first : first + LOCAL_SLICE]]
        return self._batch_answer(decisions, started)

    def _batch_answer(self, decisions: Sequence[Any], started: float) -> bytes:
        tally = self.plane.tally
        tally.batch(len(decisions))
        tally.timed(perf_counter() - started)
        return encoded(CheckBatchResponse(decisions=decisions))

    async def quota(self, call: Call, message: bytes) -> bytes:
        """GetRemainingQuota."""
        check_counts(message, PLANS)
        return encoded(whole(QuotaResponse, await self.plane.peek(asked_of(_read_quota(message), ""))))

    async def reset(self, call: Call, message: bytes) -> bytes:
        """ResetLimit."""
        check_counts(message, PLANS)
        check_counts(message, DESCRIPTORS, ENTRIES)
        told = _read_reset(message)
        plane = self.plane
        if told.domain or told.descriptors:
            members = await self._reset_descriptors(call, told)
        else:
            members = await plane.forget(call, prepare(plane.limiter, Op.RESET, _asked(told, "", 1, None)))
        reset = [ResetCounter(key=member.key, rule=member.algorithm.label) for member in members]
        return encoded(ResetResponse(reset_count=len(reset), reset=reset))

    async def _reset_descriptors(self, call: Call, told: Any) -> Sequence[Member]:
        for name in ("identifier", "dimension", "endpoint", "key", "plans", "method"):
            if getattr(told, name):
                raise wrong(name, "does not go with 'domain': set domain and descriptors alone")
        return await self.forget_descriptors(call, told.domain, told.descriptors)


def checks_of(message: bytes) -> list[CheckBody]:
    check_counts(message, CHECKS, PLANS_OF_ALL)
    told = _read_batch(message).checks
    count = len(told)
    if count > MOST_CHECKS:
        raise wrong("checks", f"has more than {MOST_CHECKS:,} checks: {SPLIT}")
    return [asked_of(told[place], f"checks[{place}]") for place in range(count)]


def asked_of(told: Any, at: str) -> CheckBody:
    """A CheckRequest or QuotaRequest as a check. `at` is where it stands, for messages."""
    cost: int = told.cost if told.HasField("cost") else 1
    timestamp: float | None = told.timestamp if told.HasField("timestamp") else None
    return _asked(told, at, cost, timestamp)


def _asked(told: Any, at: str, cost: int, timestamp: float | None) -> CheckBody:
    """What is not set is empty in a message, and so is what was set to nothing."""
    number: int = told.dimension
    identifier: str = told.identifier
    endpoint: str = told.endpoint
    method: str = told.method
    key: str = told.key
    plans = told.plans
    if key:
        if number or identifier or endpoint or method:
            other = "dimension" if number else "identifier" if identifier else "endpoint" if endpoint else "method"
            raise wrong(way(at, other), f"does not go with 'key': {FORMS}")
        return CheckBody(key=key, plans=list(plans) if plans else None, cost=cost, timestamp=timestamp)
    if not number:
        raise wrong(way(at, "dimension"), f"is not set: set it to one of {DIMENSIONS}, or set key")
    if plans:
        raise wrong(way(at, "plans"), f"does not go with 'dimension': {FORMS}")
    dimension = Dimension.get(number)
    if dimension is None:
        raise wrong(way(at, "dimension"), f"must be one of {DIMENSIONS}, not {number}")
    return CheckBody(
        dimension=dimension,
        identifier=identifier or None,
        endpoint=endpoint or None,
        method=method or None,
        cost=cost,
        timestamp=timestamp,
    )


def whole(kind: Any, answer: Answer) -> Any:
    """An answer as a CheckResponse or QuotaResponse, with all of its parts."""
    said = one(kind, answer)
    if isinstance(answer.parts, list):
        said.parts.extend([one(LimitStatus, part) for part in answer.parts])
    if isinstance(answer.shadows, list):
        said.shadows.extend([one(LimitStatus, shadow) for shadow in answer.shadows])
    return said


def one(kind: Any, answer: Answer) -> Any:
    """The numbers of one decision, or of one of its parts."""
    wait = answer.retry_after
    said = kind(
        allowed=answer.allowed,
        current_count=answer.current_count,
        limit=answer.limit,
        remaining=answer.remaining,
        reset_at=answer.reset_at,
        retry_after=0 if answer.allowed else NEVER if wait is None else int(-(-wait // 1)),
        reason=answer.reason,
        rule=answer.rule or "",
        state=answer.state,
        delay=answer.delay,
        reset_after=answer.reset_after,
    )
    position = answer.queue_position
    if isinstance(position, int):
        said.queue_position = position
    return said


def encoded(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
