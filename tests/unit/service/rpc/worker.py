"""One worker without sockets: its gRPC methods and its HTTP, over the same counters in memory, on virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from headgate import AsyncLimiter, Limiter
from headgate.config.server import Ceilings, Server
from headgate.config.settings import Logs, Settings
from headgate.rules.catalog import Catalog
from headgate.rules.repositories.port import Actor, Edit
from headgate.service.auth.guard import CheckCeiling, Guard, needed_to_check
from headgate.service.auth.keys import Keys, Scope, create_key
from headgate.service.data.plane import DataPlane
from headgate.service.dispatch import Dispatch
from headgate.service.health import Health
from headgate.service.observe.tally import Tally
from headgate.service.parts import Parts
from headgate.service.request_log import RequestLog
from headgate.service.rpc import messages
from headgate.service.rpc.call import Method, RpcCall, RpcError
from headgate.service.rpc.envoy import Envoy
from headgate.service.rpc.methods import make_methods
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from unit.rules.memory_repository import MemoryRepository

__all__ = ["ADMIN", "Worker", "bearer", "status_of"]

LIMITER = "headgate.v1.RateLimiter"
MESSAGES = {
    f"{LIMITER}/CheckRateLimit": (messages.CheckRequest, messages.CheckResponse),
    f"{LIMITER}/CheckRateLimitBatch": (messages.CheckBatchRequest, messages.CheckBatchResponse),
    f"{LIMITER}/GetRemainingQuota": (messages.QuotaRequest, messages.QuotaResponse),
    f"{LIMITER}/ResetLimit": (messages.ResetRequest, messages.ResetResponse),
    "grpc.health.v1.Health/Check": (messages.HealthCheckRequest, messages.HealthCheckResponse),
    "grpc.health.v1.Health/List": (
        messages.message_class("grpc.health.v1.HealthListRequest"),
        messages.HealthListResponse,
    ),
}
ADMIN = "correct-horse-battery"
PEER = "192.0.2.1"
ALICE = Actor("alice")


class Worker:
    """What one worker answers with. `records` are rules and plans by their ids, `store` what counts."""

    def __init__(
        self,
        records: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
        store: Any = None,
        server: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        logs: Logs | None = None,
    ) -> None:
        self.runner = asyncio.Runner()
        self.clock = FakeClock(1_700_000_000) if store is None else store.clock
        self.repository = MemoryRepository(self.clock)
        self.repository.write([Edit(kind, name, dict(body)) for (kind, name), body in (records or {}).items()], ALICE)  # type: ignore[arg-type]
        self.catalog = Catalog([self.repository], 3600)
        settings = Settings(server=Server(**(server or {}), limits=Ceilings(**(limits or {}))), logs=logs or Logs())
        limiter = AsyncLimiter(MemoryStore(clock=self.clock) if store is None else store, catalog=self.catalog)
        nothing: Any = None
        self.tally = Tally()
        self.parts = Parts(
            settings, limiter, self.repository, nothing, nothing, self.tally, nothing, nothing, ("memory",), 0
        )
        node = Limiter("memory://", clock=self.clock)
        self.guard = Guard(Keys(self._keys, ADMIN), settings.server, node, self.clock.ticks)
        self.plane = DataPlane(self.parts, CheckCeiling(settings.server.limits.checks, node), None, self.guard)
        self.health = Health(limiter, self.repository)
        log = RequestLog(settings.logs)
        envoy = Envoy(self.plane, self.parts.descriptors)
        self.methods: Mapping[bytes, Method] = make_methods(self.parts, self.guard, self.plane, self.health, log, envoy)
        to_check = needed_to_check(settings.server, settings.server.http)
        self.http = Dispatch(self.parts, self.guard, self.plane, nothing, {}, to_check, log, envoy)
        self.said: dict[bytes, bytes] = {}
        """What the last answer said in its headers."""

    def key(self, scope: Scope) -> str:
        """A new key's token."""
        return create_key(self.repository, ALICE, f"{scope}-key", scope)[1]

    def _keys(self) -> Mapping[str, Mapping[str, Any]]:
        return {record.id: record.body for record in self.repository.list("key")}

    def call(self, name: str, asked: Any, metadata: Sequence[tuple[bytes, bytes]] = (), peer: str | None = PEER) -> Any:
        """Call a unary method with a message, or bytes; RpcError when it is refused. `name` may leave out
        `headgate.v1.RateLimiter/`. What is answered at once is not waited for, as in the listener."""
        path = name if "/" in name else f"{LIMITER}/{name}"
        sent: bytes = asked if isinstance(asked, bytes) else asked.SerializeToString()
        rpc = RpcCall(f"/{path}".encode(), metadata, peer, None)
        try:
            answer = self._answer(rpc, sent)
        finally:
            self.said = dict(rpc.said)
        return MESSAGES[path][1].FromString(answer)

    def _answer(self, rpc: RpcCall, sent: bytes) -> bytes:
        method = self.methods[rpc.path]
        answer = method.at_once(rpc, sent) if method.at_once is not None else None
        if answer is None:
            assert method.in_time is not None
            answer = self.runner.run(self._waited(method, rpc, sent))
        return answer

    async def _waited(self, method: Method, rpc: RpcCall, sent: bytes) -> bytes:
        assert method.in_time is not None
        return await method.in_time(rpc, sent)

    def check(self, metadata: Sequence[tuple[bytes, bytes]] = (), **fields: Any) -> Any:
        return self.call("CheckRateLimit", messages.CheckRequest(**fields), metadata)

    def post(self, path: str, body: Any) -> Any:
        """The answer over HTTP, to somebody without a key."""
        answered = self.http.at_once(path.encode(), [(b"host", b"localhost")], (PEER, 1), json.dumps(body).encode())
        assert answered is not None
        assert answered[0] == 200, answered
        return json.loads(answered[2])

    def requests(self) -> dict[int, int]:
        """How many calls were answered with each status."""
        snapshot = self.tally.snapshot(self.clock.ticks(), {})
        return {status: count for plane, status, count in snapshot.requests if plane == "grpc"}

    def close(self) -> None:
        self.runner.run(self.parts.limiter.aclose())
        self.runner.close()
        self.catalog.close()


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {token}".encode())]


def status_of(worker: Worker, name: str, asked: Any, metadata: Sequence[tuple[bytes, bytes]] = ()) -> tuple[str, str]:
    """The status and the message that a call is refused with."""
    try:
        worker.call(name, asked, metadata)
    except RpcError as error:
        return error.status.name, error.message
    raise AssertionError("it was answered")
