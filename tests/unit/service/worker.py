"""One worker without sockets: its gRPC methods and HTTP router share counters in memory, on virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from crestgate import AsyncLimiter, Limiter
from crestgate.config.server import ServerLimits, ServerSettings
from crestgate.config.settings import Logs, Settings
from crestgate.protobuf import messages
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Actor, Edit
from crestgate.service.auth.guard import CheckCeiling, Guard, required_check_scope
from crestgate.service.auth.keys import ApiKeys, Scope, create_key
from crestgate.service.checks.envoy import EnvoyService
from crestgate.service.checks.service import CheckService
from crestgate.service.context import CallContext
from crestgate.service.dependencies import Dependencies
from crestgate.service.grpc.services.registry import build_methods
from crestgate.service.grpc.transport.call import Method, RpcCall, RpcError
from crestgate.service.http.asgi import HttpResponse
from crestgate.service.http.router import Router
from crestgate.service.observability.health import Health
from crestgate.service.observability.request_log import RequestLog
from crestgate.service.observability.worker_metrics import WorkerMetrics
from crestgate.stores.memory import MemoryStore
from crestgate.testing import FakeClock
from unit.rules.memory_repository import MemoryRepository

__all__ = ["ADMIN", "Worker", "bearer", "status_of", "unary"]

LIMITER = "crestgate.v1.RateLimiter"
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
    """The handlers of one worker. `records` are rules and plans by their ids; `store` holds the counters."""

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
        settings = Settings(
            server=ServerSettings(**(server or {}), limits=ServerLimits(**(limits or {}))), logs=logs or Logs()
        )
        limiter = AsyncLimiter(MemoryStore(clock=self.clock) if store is None else store, catalog=self.catalog)
        nothing: Any = None
        self.metrics = WorkerMetrics()
        self.parts = Dependencies(
            settings, limiter, self.repository, nothing, nothing, self.metrics, nothing, nothing, ("memory",), 0
        )
        node = Limiter("memory://", clock=self.clock)
        self.guard = Guard(ApiKeys(self._keys, ADMIN), settings.server, node, self.clock.ticks)
        self.checks = CheckService(self.parts, CheckCeiling(settings.server.limits.checks, node), None)
        self.health = Health(limiter, self.repository)
        log = RequestLog(settings.logs)
        envoy = EnvoyService(self.checks, self.parts.descriptors)
        self.methods: Mapping[bytes, Method] = build_methods(
            self.parts, self.guard, self.checks, envoy, self.health, log
        )
        to_check = required_check_scope(settings.server, settings.server.http)
        self.http = Router(self.parts, self.guard, self.checks, envoy, nothing, {}, to_check, log)
        self.response_headers: dict[bytes, bytes] = {}
        """Headers of the last response."""

    def key(self, scope: Scope) -> str:
        """A new key's token."""
        return create_key(self.repository, ALICE, f"{scope}-key", scope)[1]

    def _keys(self) -> Mapping[str, Mapping[str, Any]]:
        return {record.id: record.body for record in self.repository.list("key")}

    def call(
        self, name: str, request: Any, metadata: Sequence[tuple[bytes, bytes]] = (), peer: str | None = PEER
    ) -> Any:
        """Call a unary method with a message, or bytes; RpcError when it is refused. `name` may leave out
        `crestgate.v1.RateLimiter/`. An immediate response is not awaited, as in the listener."""
        path = name if "/" in name else f"{LIMITER}/{name}"
        data: bytes = request if isinstance(request, bytes) else request.SerializeToString()
        rpc = RpcCall(f"/{path}".encode(), metadata, peer, None)
        try:
            response = self._respond(rpc, data)
        finally:
            self.response_headers = dict(rpc.response_headers)
        return MESSAGES[path][1].FromString(response)

    def _respond(self, rpc: RpcCall, data: bytes) -> bytes:
        method = self.methods[rpc.path]
        return self.runner.run(unary(method, rpc, data))

    def check(self, metadata: Sequence[tuple[bytes, bytes]] = (), **fields: Any) -> Any:
        return self.call("CheckRateLimit", messages.CheckRequest(**fields), metadata)

    def post(self, path: str, body: Any) -> Any:
        """The HTTP response body for a client without a key."""
        response = self.http.respond(path.encode(), [(b"host", b"localhost")], (PEER, 1), json.dumps(body).encode())
        assert isinstance(response, tuple)
        assert response[0] == 200, response
        return json.loads(response[2])

    def respond(self, path: str, call: CallContext, body: bytes) -> HttpResponse:
        """The response of the handler of an HTTP path."""

        async def respond() -> HttpResponse:
            response = self.http.routes[path].handler(call, body)
            return response if isinstance(response, HttpResponse) else await response

        return self.runner.run(respond())

    def requests(self) -> dict[int, int]:
        """The number of responses by status."""
        snapshot = self.metrics.snapshot(self.clock.ticks(), {})
        return {
            int(status): count for (plane, status), count in snapshot.counters["requests"].items() if plane == "grpc"
        }

    def close(self) -> None:
        self.runner.run(self.parts.limiter.aclose())
        self.runner.close()
        self.catalog.close()


async def unary(method: Method, rpc: RpcCall, message: bytes) -> bytes:
    """The response to a message, as the listener gets it."""
    assert method.unary is not None
    reply = method.unary(rpc, message)
    return reply if isinstance(reply, bytes) else await reply


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {token}".encode())]


def status_of(worker: Worker, name: str, request: Any, metadata: Sequence[tuple[bytes, bytes]] = ()) -> tuple[str, str]:
    """The status and message of a refused call."""
    try:
        worker.call(name, request, metadata)
    except RpcError as error:
        return error.status.name, error.message
    raise AssertionError("it was answered")
