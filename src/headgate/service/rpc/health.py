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
WATCHERS_PER_TURN: Final = 64
"""Watchers that are notified of a change in one turn of the event loop."""
LOOK_SECONDS: Final = 0.5
"""How often somebody looks while anybody watches: one for all of them. The stores are asked once a second at most, see
service/health.py."""


@final
class HealthService:
    """Of one worker. All services share one store, so they are well together."""

    def __init__(self, health: Health, services: Sequence[str], look_seconds: float = LOOK_SECONDS) -> None:
        self.health = health
        self.services = ("", *services)
        self.look_seconds = look_seconds
        self._seen = (0, False)
        """The status, and whether this worker stops, as of the last look; 0 before the first one."""
        self._waiting: dict[asyncio.Future[None], None] = {}
        """One future for each watcher that waits for a change. An asyncio.Event would search all of them for each one
        that leaves."""
        self._watchers = 0
        self._looking: asyncio.Task[None] | None = None

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
        self._watchers += 1
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        try:
            last = 0
            while True:
                seen, stopping = self._seen
                status = seen if service in self.services else SERVICE_UNKNOWN
                if status != last:
                    await send(_said(status))
                    last = status
                if stopping:
                    raise RpcError(Status.UNAVAILABLE, "the service is stopping")
                if (seen, stopping) == self._seen:  # else it has changed while that was sent
                    await self._change()
        finally:
            self._watchers -= 1
            if not self._watchers and self._looking is not None:
                self._looking.cancel()
                self._looking = None
                self._seen = (0, False)

    async def _change(self) -> None:
        """Wait for a change."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[changed] = None
        try:
            await changed
        finally:
            self._waiting.pop(changed, None)

    async def _look(self) -> None:
        while True:
            await self._note()
            await asyncio.sleep(self.look_seconds)

    async def _note(self) -> None:
        stopping = self.health.stopping
        seen = (await self._status(), stopping)
        if seen == self._seen:
            return
        self._seen = seen
        waiting = list(self._waiting)
        for first in range(0, len(waiting), WATCHERS_PER_TURN):
            if first:
                await asyncio.sleep(0)
            for changed in waiting[first : first + WATCHERS_PER_TURN]:
                if not changed.done():
                    changed.set_result(None)

    async def _status(self) -> int:
        return SERVING if (await self.health.readiness()).ready else NOT_SERVING


def _said(status: int) -> bytes:
    data: bytes = HealthCheckResponse(status=status).SerializeToString()
    return data
