"""Endpoints of probes and scrapers: health, readiness and metrics."""

from __future__ import annotations

import time
from typing import Any

from crestgate.service.checks.responses import encode
from crestgate.service.context import CallContext
from crestgate.service.http.asgi import HttpResponse, problem_response
from crestgate.service.observability.health import Health
from crestgate.service.observability.publisher import Publisher

__all__ = ["Probes"]

NO_STORE = [(b"cache-control", b"no-store")]
TEXT = (b"content-type", b"text/plain; charset=utf-8")


class Probes:
    """The endpoints of one worker."""

    def __init__(self, health: Health, publisher: Publisher) -> None:
        self._health = health
        self._publisher = publisher

    async def health(self, call: CallContext, body: bytes) -> HttpResponse:
        """`GET /healthz`."""
        return HttpResponse(200, encode(self._health.alive()), NO_STORE)

    async def readiness(self, call: CallContext, body: bytes) -> HttpResponse:
        """`GET /readyz`."""
        readiness = await self._health.readiness()
        stores: dict[str, Any] = {"checks": readiness.checks, "unreachable": list(readiness.unreachable)}
        if readiness.ready:
            status = "degraded" if readiness.unreachable else "ready"
            return HttpResponse(200, encode({"status": status, **stores}), NO_STORE)
        return problem_response(503, f"not ready: {readiness.problem()}", NO_STORE, **stores)

    async def healthcheck(self, call: CallContext, body: bytes) -> HttpResponse:
        """`GET /healthcheck`: readiness as envoyproxy/ratelimit has it, for probes that were made for that."""
        ready = (await self._health.readiness()).ready
        return HttpResponse(200 if ready else 500, b"OK" if ready else b"", NO_STORE, TEXT)

    async def metrics(self, call: CallContext, body: bytes) -> HttpResponse:
        """`GET /metrics`: of all workers of this node."""
        accept = call.fields.get(b"accept", b"").decode("latin-1")
        text, content_type = await self._publisher.exposition(time.time_ns() // 1000, accept)
        return HttpResponse(200, text, NO_STORE, (b"content-type", content_type.encode()))
