"""The router: paths of the admin API, and pending responses of the fast path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from crestgate.service.admin.api import ADMIN_PATHS
from crestgate.service.http.router import PENDING, DeferredResponse
from unit.service.admin.admin_client import Control
from unit.service.worker import Worker

DATA = {
    "/api/v1/check",
    "/api/v1/check/batch",
    "/api/v1/quota",
    "/api/v1/explain",
    "/api/v1/reset",
    "/api/v1/reservations",
    "/api/v1/reservations/{id}/settle",
    "/api/v1/reservations/{id}/release",
    "/api/v1/reservations/{id}/extend",
    "/api/v1/authorize",
    "/json",
    "/ratelimiter/verify-api-limit",
    "/healthz",
    "/readyz",
    "/metrics",
}


def test_admin_paths_are_those_of_the_openapi(tmp_path: Path) -> None:
    described = set(Control(tmp_path).app.openapi()["paths"])
    admin = {path for path in described if path.startswith(tuple(f"{prefix}/" for prefix in ADMIN_PATHS))}
    admin |= described & set(ADMIN_PATHS)
    assert described - admin == DATA
    assert not admin & DATA
    used = {prefix for prefix in ADMIN_PATHS if any(path == prefix or path.startswith(prefix + "/") for path in admin)}
    assert used == set(ADMIN_PATHS)


def test_admin_paths_end_before_parameters() -> None:
    assert {"/api/v1/rules", "/api/v1/users", "/admin/policies", "/ratelimiter/client-limits"} <= set(ADMIN_PATHS)
    assert not [path for path in ADMIN_PATHS if "{" in path or path.endswith("/")]


def test_pending_response_of_the_fast_path_is_sent_through_asgi() -> None:
    worker = Worker({("plan", "gold"): {"limits": ["3/minute"]}})
    worker.checks.backend.local = None  # like a store that another process has locked
    headers = [(b"host", b"localhost"), (b"x-request-id", b"same")]
    body = b'{"key": "user:42", "plans": ["gold"]}'
    pending = worker.http.respond(b"/api/v1/check", headers, ("192.0.2.1", 1), body)
    assert isinstance(pending, DeferredResponse)
    sent: list[Any] = []

    async def never() -> Any:
        raise AssertionError("the body was read again")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/api/v1/check", "headers": headers, PENDING: pending}
    worker.runner.run(worker.http(scope, never, send))
    assert sent[0]["status"] == 200
    assert (b"x-request-id", b"same") in sent[0]["headers"]
    assert json.loads(sent[1]["body"])["remaining"] == 2, "it was charged once"
    assert worker.metrics.snapshot(0, {}).counters["requests"] == {("data", "200"): 1}
    worker.close()
