"""An in-process service on virtual time: real requests over a socket, counters in memory, rules in SQLite.

One server for many stores: `renewed` gives its worker a new limiter on the given clock, and returns a client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn

from crestgate import AsyncLimiter, Limit, Limiter
from crestgate.config.settings import ServerLimits, ServerSettings, Settings
from crestgate.core.failure_policies import OnStoreError
from crestgate.history.factory import open_history
from crestgate.locks.factory import open_locks
from crestgate.rules.catalog import Catalog
from crestgate.rules.storage.factory import open_repository
from crestgate.rules.storage.files import FileRepository
from crestgate.service.admin.api import create_admin_app
from crestgate.service.auth.guard import CheckCeiling, Guard
from crestgate.service.auth.keys import ApiKeys
from crestgate.service.checks.envoy import EnvoyService
from crestgate.service.checks.service import CheckService
from crestgate.service.dependencies import Dependencies
from crestgate.service.http.fast_path import FastConnection
from crestgate.service.http.router import Router
from crestgate.service.node import WorkerNotifier
from crestgate.service.observability.request_log import RequestLog
from crestgate.service.observability.worker_metrics import WorkerMetrics
from crestgate.service.observability.worker_snapshots import WorkerSnapshots
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Store
from crestgate.stores.remote.http_connection import ServiceAddress
from crestgate.stores.remote.store import ServiceStore
from crestgate.testing import FakeClock

__all__ = ["KEY", "ServiceHere"]

KEY = "cg_anybody_may_know_this_one"
PLENTY = Limit(10**9, 1)
NEVER = 3600.0
PATIENCE_MS = 60_000


class ServiceHere:
    """One worker on its own thread. `rules` is the text of its rule file."""

    def __init__(self, folder: Path, rules: str = "") -> None:
        url = f"sqlite:///{folder / 'rules.db'}"
        (folder / "rules.yaml").write_text(rules)
        repository = open_repository(url)
        self.catalog = Catalog([FileRepository([str(folder / "rules.yaml")]), repository], NEVER)
        settings = Settings(rules_store=url, server=ServerSettings(limits=ServerLimits(PLENTY, PLENTY, PLENTY, PLENTY)))
        self.node = Limiter("memory://")
        self.guard = Guard(ApiKeys(lambda: self.catalog.keys, KEY), settings.server, self.node)
        self.parts = Dependencies(
            settings=settings,
            limiter=AsyncLimiter(catalog=self.catalog),
            repository=repository,
            locks=open_locks(url),
            history=open_history(url),
            metrics=WorkerMetrics(),
            worker_snapshots=WorkerSnapshots(folder / "snapshots", 0),
            notifier=WorkerNotifier(str(folder), 0),
            store_titles=("memory", "SQLite"),
            started_us=0,
        )
        self.control = create_admin_app(self.parts)
        self.router = self._router(self.parts)
        config = uvicorn.Config(
            self,
            http=FastConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            proxy_headers=False,
            port=0,
        )
        self.server = uvicorn.Server(config)
        self.thread = Thread(target=lambda: asyncio.run(self.server.serve()), daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.001)
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]

    def renewed(self, clock: FakeClock) -> ServiceStore:
        """A client of the same service with empty counters, on this clock."""
        return self.on(MemoryStore(clock=clock))

    def on(self, store: Store, on_store_error: OnStoreError = "open") -> ServiceStore:
        """A client of the same service with its counters in `store`."""
        limiter = AsyncLimiter(store, catalog=self.catalog, on_store_error=on_store_error)
        self.router = self._router(replace(self.parts, limiter=limiter))
        return ServiceStore(ServiceAddress("127.0.0.1", self.port, KEY), timeout_ms=PATIENCE_MS)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.catalog.close()
        self.parts.locks.close()
        self.parts.history.close()

    def _router(self, parts: Dependencies) -> Router:
        checks = CheckService(parts, CheckCeiling(PLENTY, self.node), None)
        envoy = EnvoyService(checks, parts.descriptors)
        return Router(parts, self.guard, checks, envoy, self.control, {}, None, RequestLog(parts.settings.logs))

    @property
    def fast_paths(self) -> dict[bytes, str]:
        """The attribute that connections read."""
        return self.router.fast_paths

    def respond(self, *request: Any) -> Any:
        return self.router.respond(*request)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await self.router(scope, receive, send)
