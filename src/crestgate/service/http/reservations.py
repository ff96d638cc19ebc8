"""`POST /api/v1/reservations`, and `…/{id}/settle`, `…/{id}/release` and `…/{id}/extend`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, final

import msgspec
from msgspec import UNSET

from crestgate.errors import InvalidRequestError
from crestgate.service.checks.reservations import ReservationService, read_extend, read_reservation, read_settle
from crestgate.service.context import CallContext
from crestgate.service.http.asgi import HttpResponse

__all__ = ["ReservationEndpoints"]

_encode: Final = msgspec.json.Encoder().encode


@final
class ReservationEndpoints:
    """The endpoints of one worker. `root` is the path of all reservations."""

    def __init__(self, reservations: ReservationService, root: str) -> None:
        self._reservations = reservations
        self._root = root
        self.actions: dict[str, Callable[[CallContext, bytes], Awaitable[HttpResponse]]] = {
            "settle": self.settle,
            "release": self.release,
            "extend": self.extend,
        }

    async def reserve(self, call: CallContext, body: bytes) -> HttpResponse:
        """201 with an id, or 200 if it is denied."""
        response = await self._reservations.reserve(call, read_reservation(body))
        return HttpResponse(200 if response.id is UNSET else 201, _encode(response))

    async def settle(self, call: CallContext, body: bytes) -> HttpResponse:
        settlement = await self._reservations.settle(call, self._id(call), read_settle(body))
        return HttpResponse(200, _encode(settlement))

    async def release(self, call: CallContext, body: bytes) -> HttpResponse:
        if body.strip() not in (b"", b"{}"):
            raise InvalidRequestError("", "release takes no body: leave it out")
        return HttpResponse(200, _encode(await self._reservations.release(call, self._id(call))))

    async def extend(self, call: CallContext, body: bytes) -> HttpResponse:
        extension = await self._reservations.extend(call, self._id(call), read_extend(body))
        return HttpResponse(200, _encode(extension))

    def _id(self, call: CallContext) -> str:
        path: str = call.scope["path"]
        return path[len(self._root) + 1 :].rpartition("/")[0]
