"""grpc.health.v1.Health: the same readiness as /readyz, for the server as a whole and for each of its services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, final

from headgate.service.asgi import Call
from headgate.service.health import Health
from headgate.service.rpc.call import RpcError, Send, Status
from headgate.service.rpc.entry import one_line
from headgate.service.rpc.messages import HealthCheckRequest, HealthCheckResponse, HealthListResponse

__all__ = ["HealthService"]

SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3
LOOK_SECONDS: Final = 0.5
"""How often Watch looks. The stores are asked once a second, however many watch: see service/health.py."""


@final
class HealthService:
    """Of one worker. All services share one store, so they are well together."""

    def __init__(self, health: Health, services: Sequence[str], look_seconds: float = LOOK_SECONDS) -> None:
        self.health = health
        self.services = ("", *services)
        self.look_seconds = look_seconds

    async def check(self, call: Call, message: bytes) -> bytes:
        service: str = HealthCheckRequest.FromString(message).service
        if service not in self.services:
            raise RpcError(Status.NOT_FOUND, one_line(f"there is no service {service!r} here"))
        return _said(await self._status())

    async def every(self, call: Call, message: bytes) -> bytes:
        """List."""
        status = await self._status()
        answer = HealthListResponse()
        for service in self.services:
            answer.statuses[service].status = status
        data: bytes = answer.SerializeToString()
        return data

    async def watch(self, call: Call, messages: AsyncIterator[bytes], send: Send) -> None:
        """How a service is, now and whenever that changes. It ends when this worker does: its caller watches the one
        that it is connected to next."""
        service: str | None = None
        async for message in messages:
            service = HealthCheckRequest.FromString(message).service
            break
        if service is None:
            raise RpcError(Status.INVALID_ARGUMENT, "nothing says what is to be watched: send a HealthCheckRequest")
        last = 0
        while True:
            stopping = self.health.stopping
            status = await self._status() if service in self.services else SERVICE_UNKNOWN
            if status != last:
                await send(_said(status))
                last = status
            if stopping:
                raise RpcError(Status.UNAVAILABLE, "the service is stopping")
            await asyncio.sleep(self.look_seconds)

    async def _status(self) -> int:
        return SERVING if (await self.health.readiness()).ready else NOT_SERVING


def _said(status: int) -> bytes:
    data: bytes = HealthCheckResponse(status=status).SerializeToString()
    return data
