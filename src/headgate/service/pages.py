"""Health, readiness and metrics: what probes and scrapers ask of a worker."""

from __future__ import annotations

import time

from headgate.service.asgi import Call, Reply, refused
from headgate.service.data.answers import encode
from headgate.service.health import Health
from headgate.service.observe.publishing import Publisher

__all__ = ["Pages"]

FRESH = [(b"cache-control", b"no-store")]


class Pages:
    """Answers probes and scrapers."""

    def __init__(self, health: Health, publisher: Publisher) -> None:
        self._health = health
        self._publisher = publisher

    async def alive(self, _: Call) -> Reply:
        """`GET /healthz`."""
        return Reply(200, encode(self._health.alive()), FRESH)

    async def ready(self, _: Call) -> Reply:
        """`GET /readyz`."""
        found = await self._health.readiness()
        if found.ready:
            return Reply(200, encode({"status": "ready", "checks": found.checks}), FRESH)
        return refused(503, f"not ready: {found.problem()}", FRESH, checks=found.checks)

    async def metrics(self, call: Call) -> Reply:
        """`GET /metrics`: of all workers of this node."""
        accept = call.fields.get(b"accept", b"").decode("latin-1")
        text, kind = await self._publisher.exposition(time.time_ns() // 1000, accept)
        return Reply(200, text, FRESH, (b"content-type", kind.encode()))
