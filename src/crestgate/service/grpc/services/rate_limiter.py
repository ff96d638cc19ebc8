# mypyc: compile
"""crestgate.v1.RateLimiter: the checks of HTTP as protobuf messages."""

from __future__ import annotations

from typing import Any, Final, final

import msgspec

from crestgate.core.dimensions import MAX_ATTRIBUTES
from crestgate.envoy.descriptors import ENTRIES, MAX_RESET
from crestgate.errors import InvalidRequestError
from crestgate.protobuf.field_counts import Repeated, check_counts
from crestgate.protobuf.messages import (
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
from crestgate.service.checks.deferred import Deferred
from crestgate.service.checks.envoy import EnvoyService
from crestgate.service.checks.forms import MAX_CHECKS, MAX_PLANS, context_of, prepare_check
from crestgate.service.checks.schemas import CheckBody, ContextBody, DecisionBody
from crestgate.service.checks.service import CheckService
from crestgate.service.checks.slices import LOCAL_SLICE, next_turn
from crestgate.service.context import CallContext
from crestgate.stores.port import Op

__all__ = ["ATTRIBUTES", "PLANS", "RateLimiter", "check_of", "response_of"]

NEVER: Final = -1
FORMS: Final = "set dimension and identifier, with endpoint, method and attributes, or key, with plans"
DIMENSIONS: Final = ", ".join([name for number, name in Dimension.items() if number])
SPLIT: Final = "send them in several batches"
CHECKS: Final = Repeated(1, "checks", MAX_CHECKS, SPLIT)
PLANS: Final = Repeated(7, "plans", MAX_PLANS, "send fewer")
ATTRIBUTES: Final = Repeated(9, "attributes", MAX_ATTRIBUTES, "send fewer")
TAG: Final = 0x4A
"""The byte of ATTRIBUTES.tag."""
LONG_TAG: Final = 0xCA
"""Its first byte where it is written with more bytes than it needs."""
ATTRIBUTES_OF_ALL: Final = Repeated(9, "attributes", MAX_CHECKS * MAX_ATTRIBUTES, SPLIT)
ATTRIBUTES_OF_RESET: Final = Repeated(11, "attributes", MAX_ATTRIBUTES, "send fewer")
PLANS_OF_ALL: Final = Repeated(7, "plans", MAX_CHECKS * MAX_PLANS, SPLIT)
DESCRIPTORS: Final = Repeated(10, "descriptors", MAX_RESET, "send fewer")

Later = Deferred[bytes]

_read_check: Final[Any] = CheckRequest.FromString
_read_batch: Final[Any] = CheckBatchRequest.FromString
_read_quota: Final[Any] = QuotaRequest.FromString
_read_reset: Final[Any] = ResetRequest.FromString


@final
class RateLimiter:
    """The handlers of one worker: bytes of a message in, bytes of the response out."""

    def __init__(self, checks: CheckService, envoy: EnvoyService) -> None:
        self.checks = checks
        self.envoy = envoy

    def check(self, call: CallContext, message: bytes) -> bytes | Later:
        """CheckRateLimit."""
        check_counts(message, PLANS)
        attributes = _may_have_attributes(message)
        if attributes:
            check_counts(message, ATTRIBUTES)
        answers = self.checks.check(call, [check_of(_read_check(message), attributes)], False)
        return _encode_check(answers) if isinstance(answers, list) else answers.then(_encode_check)

    def batch(self, call: CallContext, message: bytes) -> bytes | Later:
        """CheckRateLimitBatch."""
        check_counts(message, CHECKS, PLANS_OF_ALL)
        check_counts(message, CHECKS, ATTRIBUTES_OF_ALL)
        requests = _read_batch(message).checks
        count = len(requests)
        if count > MAX_CHECKS:
            raise InvalidRequestError("checks", f"has more than {MAX_CHECKS:,} checks: {SPLIT}")
        checks: list[CheckBody] = []
        attributes = _may_have_attributes(message)
        try:
            for index in range(count):
                checks.append(check_of(requests[index], attributes))  # noqa: PERF401 - as many as are valid, for the error
        except InvalidRequestError as error:
            raise error.inside(f"checks[{len(checks)}]") from None
        answers = self.checks.check(call, checks, True, len(message))
        if isinstance(answers, list):
            return _encode(CheckBatchResponse(decisions=[response_of(CheckResponse, answer) for answer in answers]))
        return answers.then_await(_encode_batch)

    def quota(self, call: CallContext, message: bytes) -> bytes | Later:
        """GetRemainingQuota."""
        check_counts(message, PLANS)
        attributes = _may_have_attributes(message)
        if attributes:
            check_counts(message, ATTRIBUTES)
        answer = self.checks.peek(check_of(_read_quota(message), attributes))
        return _encode_quota(answer) if isinstance(answer, DecisionBody) else answer.then(_encode_quota)

    async def reset(self, call: CallContext, message: bytes) -> bytes:
        """ResetLimit."""
        check_counts(message, PLANS)
        check_counts(message, ATTRIBUTES_OF_RESET)
        check_counts(message, DESCRIPTORS, ENTRIES)
        request = _read_reset(message)
        if request.domain or request.descriptors:
            for name in ("identifier", "dimension", "endpoint", "key", "plans", "method", "attributes"):
                if getattr(request, name):
                    raise InvalidRequestError(name, "cannot be combined with 'domain': set domain and descriptors only")
            pending = self.envoy.prepare_reset(request.domain, request.descriptors)
        else:
            pending = prepare_check(self.checks.limiter, Op.RESET, _body_of(request, 1, None))
        members = await self.checks.reset(call, pending)
        reset = [ResetCounter(key=member.key, rule=member.algorithm.label) for member in members]
        return _encode(ResetResponse(reset_count=len(reset), reset=reset))


def _may_have_attributes(message: bytes) -> bool:
    """Whether a message has the tag of attributes, by one byte of it: to read the field of an object costs more."""
    return TAG in message or LONG_TAG in message


def check_of(request: Any, may_have_attributes: bool) -> CheckBody:
    """A CheckRequest or QuotaRequest as a check."""
    cost: int = request.cost if request.HasField("cost") else 1
    timestamp: float | None = request.timestamp if request.HasField("timestamp") else None
    return _body_of(request, cost, timestamp, may_have_attributes)


def _body_of(request: Any, cost: int, timestamp: float | None, may_have_attributes: bool = True) -> CheckBody:
    """What is not set is empty in a message, and so is what was set to nothing."""
    number: int = request.dimension
    identifier: str = request.identifier
    endpoint: str = request.endpoint
    method: str = request.method
    key: str = request.key
    plans = request.plans
    attributes = request.attributes if may_have_attributes else None
    if key:
        if number or identifier or endpoint or method or attributes:
            other = "dimension" if number else "identifier" if identifier else "endpoint" if endpoint else "method"
            if not (number or identifier or endpoint or method):
                other = "attributes"
            raise InvalidRequestError(other, f"cannot be combined with 'key': {FORMS}")
        return CheckBody(key=key, plans=list(plans) if plans else None, cost=cost, timestamp=timestamp)
    if attributes and not number and not identifier:
        context = ContextBody(path=endpoint or None, method=method or None, attributes=dict(attributes))
        return CheckBody(context=context, plans=list(plans) if plans else None, cost=cost, timestamp=timestamp)
    if not number:
        raise InvalidRequestError("dimension", f"is not set: set it to one of {DIMENSIONS}, or set key")
    if plans:
        raise InvalidRequestError("plans", f"cannot be combined with 'dimension': {FORMS}")
    dimension = Dimension.get(number)
    if dimension is None:
        raise InvalidRequestError("dimension", f"must be one of {DIMENSIONS}, not {number}")
    check = CheckBody(
        dimension=dimension,
        identifier=identifier or None,
        endpoint=endpoint or None,
        method=method or None,
        cost=cost,
        timestamp=timestamp,
    )
    if not attributes:
        return check
    context = msgspec.structs.replace(context_of(check), attributes=dict(attributes))
    return CheckBody(context=context, cost=cost, timestamp=timestamp)


def _encode_check(answers: list[DecisionBody]) -> bytes:
    return _encode(response_of(CheckResponse, answers[0]))


def _encode_quota(answer: DecisionBody) -> bytes:
    return _encode(response_of(QuotaResponse, answer))


async def _encode_batch(answers: list[DecisionBody]) -> bytes:
    """In several turns of the event loop, where there are many."""
    decisions: list[Any] = []
    for first in range(0, len(answers), LOCAL_SLICE):
        if first:
            await next_turn()
        decisions += [response_of(CheckResponse, answer) for answer in answers[first : first + LOCAL_SLICE]]
    return _encode(CheckBatchResponse(decisions=decisions))


def response_of(kind: Any, answer: DecisionBody) -> Any:
    """An answer as a CheckResponse or QuotaResponse, with all of its parts."""
    response = _status(kind, answer)
    if isinstance(answer.parts, list):
        response.parts.extend([_status(LimitStatus, part) for part in answer.parts])
    if isinstance(answer.shadows, list):
        response.shadows.extend([_status(LimitStatus, shadow) for shadow in answer.shadows])
    return response


def _status(kind: Any, answer: DecisionBody) -> Any:
    """The numbers of one decision, or of one of its parts."""
    wait = answer.retry_after
    status = kind(
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
        status.queue_position = position
    return status


def _encode(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
