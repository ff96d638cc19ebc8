"""crestgate.v1.RateLimiter: reservations, as protobuf messages."""

from __future__ import annotations

from typing import Any, Final, final

import msgspec

from crestgate.errors import InvalidRequestError
from crestgate.protobuf.field_counts import Repeated, check_counts
from crestgate.protobuf.messages import (
    CheckResponse,
    ExtendRequest,
    ExtendResponse,
    ReleaseRequest,
    ReserveRequest,
    ReserveResponse,
    SettleRequest,
    SettleResponse,
)
from crestgate.service.checks.reservations import MAX_COSTS, ReservationService
from crestgate.service.checks.schemas import ExtendBody, ReservationBody, SettleBody
from crestgate.service.context import CallContext
from crestgate.service.grpc.services.rate_limiter import ATTRIBUTES, PLANS, check_of, response_of

__all__ = ["Reservations"]

COSTS: Final = Repeated(10, "costs", MAX_COSTS, "send fewer")
ACTUALS: Final = Repeated(3, "actuals", MAX_COSTS, "send fewer")

_read_reserve: Final[Any] = ReserveRequest.FromString
_read_settle: Final[Any] = SettleRequest.FromString
_read_release: Final[Any] = ReleaseRequest.FromString
_read_extend: Final[Any] = ExtendRequest.FromString


@final
class Reservations:
    """The handlers of one worker: bytes of a message in, bytes of the response out."""

    def __init__(self, reservations: ReservationService) -> None:
        self.reservations = reservations

    async def reserve(self, call: CallContext, message: bytes) -> bytes:
        """Reserve."""
        for counted in (PLANS, ATTRIBUTES, COSTS):
            check_counts(message, counted)
        request = _read_reserve(message)
        check = check_of(request, True)
        body = ReservationBody(
            **{name: getattr(check, name) for name in check.__struct_fields__},
            costs=dict(request.costs),
            ttl=request.ttl if request.HasField("ttl") else None,
            on_expiry=request.on_expiry or "keep",
        )
        response = await self.reservations.reserve(call, body)
        result = ReserveResponse(decision=response_of(CheckResponse, response))
        if response.id is not msgspec.UNSET:
            result.id = response.id
            result.expires_at = response.expires_at
        return _encode(result)

    async def settle(self, call: CallContext, message: bytes) -> bytes:
        """Settle."""
        check_counts(message, ACTUALS)
        request = _read_settle(message)
        if request.HasField("actual") == bool(request.actuals):
            raise InvalidRequestError("actual", "must be set, or actuals: one of the two")
        actual: Any = dict(request.actuals) if request.actuals else request.actual
        settlement = await self.reservations.settle(call, request.id, SettleBody(actual))
        return _encode(SettleResponse(settled=settlement.settled, late=settlement.late))

    async def release(self, call: CallContext, message: bytes) -> bytes:
        """Release."""
        settlement = await self.reservations.release(call, _read_release(message).id)
        return _encode(SettleResponse(settled=settlement.settled, late=settlement.late))

    async def extend(self, call: CallContext, message: bytes) -> bytes:
        """Extend."""
        request = _read_extend(message)
        extension = await self.reservations.extend(call, request.id, ExtendBody(request.ttl))
        return _encode(ExtendResponse(extended=extension.extended, expires_at=extension.expires_at))


def _encode(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
