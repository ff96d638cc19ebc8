"""The control plane in one process, called through ASGI: rules in SQLite, counters in memory on virtual time.

Every response of every test is validated against the OpenAPI document: its status and the schema of its body.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, MutableMapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import schemathesis

from crestgate import AsyncLimiter, Decision, RequestContext
from crestgate.config.settings import DEFAULT_STORE, Settings
from crestgate.history.factory import open_history
from crestgate.locks.factory import open_locks
from crestgate.rules.catalog import Catalog
from crestgate.rules.storage.factory import open_repository
from crestgate.rules.storage.files import FileRepository
from crestgate.service.admin.api import create_admin_app
from crestgate.service.auth.keys import Caller
from crestgate.service.checks.traffic import TrafficRecorder
from crestgate.service.context import CallContext
from crestgate.service.dependencies import Dependencies
from crestgate.service.node import WorkerNotifier
from crestgate.service.observability.worker_metrics import WorkerMetrics
from crestgate.service.observability.worker_snapshots import WorkerSnapshots
from crestgate.stores.spec import StoreSpec
from crestgate.stores.store_group import StoreGroup
from flaky_store import Flaky

__all__ = ["Control", "problems"]

NEVER = 3600.0


class Control:
    """A worker's control plane, and a client of it."""

    def __init__(
        self, folder: Path, files: Sequence[str] = (), spec: StoreSpec = DEFAULT_STORE, group: StoreGroup | None = None
    ) -> None:
        """Counts in `self.store`, or in several stores, which are those of `spec`."""
        self.runner = asyncio.Runner()
        self.store = Flaky()
        self.clock = self.store.clock
        self.clock.advance(time.time() - self.clock.now())  # from the database's time on
        url = f"sqlite:///{folder / 'rules.db'}"
        (folder / "rules.db").write_bytes(_empty_database())
        paths = []
        for number, text in enumerate(files):
            path = folder / f"{number}.yaml"
            path.write_text(text)
            paths.append(str(path))
        self.repository = open_repository(url)
        catalog = Catalog([FileRepository(paths), self.repository], NEVER)
        self.snapshots_folder = folder / "snapshots"
        self.parts = Dependencies(
            settings=Settings(store=spec, rules_store=url),
            limiter=AsyncLimiter(self.store if group is None else group, catalog=catalog),
            repository=self.repository,
            locks=open_locks(url),
            history=open_history(url),
            metrics=WorkerMetrics(),
            worker_snapshots=WorkerSnapshots(self.snapshots_folder, 0),
            notifier=WorkerNotifier(str(folder), 0),
            store_titles=("memory", "SQLite"),
            started_us=self.clock.ticks(),
            traffic=TrafficRecorder(1000, self.clock.ticks()),
        )
        self.caller = Caller("ops", "write", "0" * 12)
        self.other_worker = WorkerNotifier(str(folder), 1)
        self.notified = 0
        """Notifications that the other worker received."""
        self.runner.run(self._listen())
        self.app = create_admin_app(self.parts, self.clock.ticks)
        self.described = _described(self.app.openapi)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self._behind_guard), base_url="http://crestgate")

    async def _listen(self) -> None:
        def count() -> None:
            self.notified += 1

        self.other_worker.listen(count)

    async def _behind_guard(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        call = CallContext(scope, {}, "request-1")
        call.caller, call.address = self.caller, "10.1.2.3"
        scope["crestgate"] = call
        await self.app(scope, receive, send)

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        response = self.runner.run(self.http.request(method, path, **options))
        self.runner.run(asyncio.sleep(0))  # lets the other worker receive the notification
        self.validate_against_openapi(response)
        return response

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.call("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.call("POST", path, body, **options)

    def put(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.call("PUT", path, body, **options)

    def delete(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.call("DELETE", path, body, **options)

    def check(self, **context: Any) -> Decision:
        """Consume, as a check does."""
        return self.runner.run(self.parts.limiter.check_request(RequestContext(**context)))

    def actions(self) -> list[str]:
        """Entries of the audit log, oldest first."""
        entries = self.get("/api/v1/audit").json()["entries"]
        return [f"{entry['action']} {entry['subject']}" for entry in reversed(entries)]

    async def _close_workers(self) -> None:
        self.other_worker.close()
        self.parts.notifier.close()

    def close(self) -> None:
        self.runner.run(self._close_workers())
        self.runner.run(self.http.aclose())
        self.runner.run(self.parts.limiter.aclose())
        self.parts.catalog.close()
        self.parts.locks.close()
        self.parts.history.close()
        self.runner.close()

    def validate_against_openapi(self, response: httpx.Response) -> None:
        if response.status_code >= 400:
            assert response.headers["content-type"] == "application/problem+json"
            body = response.json()
            assert body["status"] == response.status_code
            assert body["error"] == body["title"]
            assert body["message"] == body["detail"] != ""
        operation = self.described.find_operation_by_path(response.request.method, response.request.url.path)
        if operation is None:
            return
        assert str(response.status_code) in operation.definition.raw["responses"], (
            "status is not in the OpenAPI document"
        )
        operation.validate_response(response)


@cache
def _empty_database() -> bytes:
    """A database with all its tables, created once for all tests."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "rules.db")
        open_repository(f"sqlite:///{path}").close()
        return path.read_bytes()


def _described(openapi: Callable[[], dict[str, Any]], made: list[Any] = []) -> Any:  # noqa: B006 - to remember it
    """The OpenAPI schema, loaded once for all tests: it is the same in every worker."""
    if not made:
        made.append(schemathesis.openapi.from_dict(openapi()))
    return made[0]


def problems(response: httpx.Response) -> dict[str, str]:
    """Validation errors of a response, by field."""
    assert response.status_code == 400, response.text
    return {entry["field"]: entry["message"] for entry in response.json()["problems"]}
