"""grpc.health.v1.Health: the same readiness as /readyz, for the server as a whole and for each of its services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, final

from crestgate.protobuf.messages import HealthCheckRequest, HealthCheckResponse, HealthListResponse
from crestgate.service.context import CallContext
from crestgate.service.grpc.services.method import one_line
from crestgate.service.grpc.transport.call import RpcError, RpcStatus, Send
from crestgate.service.observability.health import Health

__all__ = ["HealthService"]

SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3
WATCHERS_PER_TURN: Final = 64
"""Watchers that are notified of a change in one turn of the event loop."""
CHECK_SECONDS: Final = 0.5
"""Between two checks while anybody watches, one for all watchers. Stores are probed once a second at most: see
observability/health.py."""


@final
class HealthService:
    """The health of one worker. All services share one store, so they have one status."""

    def __init__(self, health: Health, services: Sequence[str], check_seconds: float = CHECK_SECONDS) -> None:
        self.health = health
        self.services = ("", *services)
        self.check_seconds = check_seconds
        self._seen = (0, False)
        """The status, and whether this worker is stopping, at the last check; 0 before the first one."""
        self._waiting: dict[asyncio.Future[None], None] = {}
        """One future for each watcher that waits for a change. An asyncio.Event would search all of them for each one
        that leaves."""
        self._watchers = 0
        self._checking: asyncio.Task[None] | None = None

    async def check(self, call: CallContext, message: bytes) -> bytes:
        service: str = HealthCheckRequest.FromString(message).service
        if service not in self.services:
            raise RpcError(RpcStatus.NOT_FOUND, one_line(f"there is no service {service!r} here"))
        return _encode(await self._status())

    async def list(self, call: CallContext, message: bytes) -> bytes:
        """List."""
        status = await self._status()
        answer = HealthListResponse()
        for service in self.services:
            answer.statuses[service].status = status
        data: bytes = answer.SerializeToString()
        return data

    async def watch(self, call: CallContext, messages: AsyncIterator[bytes], send: Send) -> None:
        """Send the status of a service, now and on every change. It ends when this worker stops: its caller watches the
        next one that it connects to."""
        service: str | None = None
        async for message in messages:
            service = HealthCheckRequest.FromString(message).service
            break
        if service is None:
            raise RpcError(RpcStatus.INVALID_ARGUMENT, "nothing says what is to be watched: send a HealthCheckRequest")
        self._watchers += 1
        if self._checking is None:
            self._checking = asyncio.get_running_loop().create_task(self._check_often())
        try:
            last = 0
            while True:
                seen, stopping = self._seen
                status = seen if service in self.services else SERVICE_UNKNOWN
                if status != last:
                    await send(_encode(status))
                    last = status
                if stopping:
                    raise RpcError(RpcStatus.UNAVAILABLE, "the service is stopping")
                if (seen, stopping) == self._seen:  # else it has changed while that was sent
                    await self._change()
        finally:
            self._watchers -= 1
            if not self._watchers and self._checking is not None:
                self._checking.cancel()
                self._checking = None
                self._seen = (0, False)

    async def _change(self) -> None:
        """Wait for a change."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[changed] = None
        try:
            await changed
        finally:
            self._waiting.pop(changed, None)

    async def _check_often(self) -> None:
        while True:
            await self._note()
            await asyncio.sleep(self.check_seconds)

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


def _encode(status: int) -> bytes:
    data: bytes = HealthCheckResponse(status=status).SerializeToString()
    return data
