"""A service in this process, on virtual time: real requests over a real socket, counters in memory, rules in SQLite.

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

from headgate import AsyncLimiter, Limit, Limiter
from headgate.config.settings import Ceilings, Server, Settings
from headgate.engine.failure import OnStoreError
from headgate.history.opening import open_history
from headgate.locks.opening import open_locks
from headgate.rules.catalog import Catalog
from headgate.rules.repositories.files import FileRepository
from headgate.rules.repositories.opening import open_repository
from headgate.service.auth.guard import CheckCeiling, Guard
from headgate.service.auth.keys import Keys
from headgate.service.control.api import make_control
from headgate.service.data.plane import DataPlane
from headgate.service.dispatch import Dispatch
from headgate.service.neighbours import Neighbours
from headgate.service.observe.board import Board
from headgate.service.observe.tally import Tally
from headgate.service.parts import Parts
from headgate.service.quick import QuickConnection
from headgate.service.request_log import RequestLog
from headgate.service.rpc.envoy import Envoy
from headgate.stores.memory import MemoryStore
from headgate.stores.port import Store
from headgate.stores.service.place import Place
from headgate.stores.service.store import ServiceStore
from headgate.testing import FakeClock

__all__ = ["KEY", "ServiceHere"]

KEY = "hg_anybody_may_know_this_one"
PLENTY = Limit(10**9, 1)
NEVER = 3600.0
PATIENCE_MS = 60_000


class ServiceHere:
    """One worker on a thread of its own. `rules` is what stands in its file."""

    def __init__(self, folder: Path, rules: str = "") -> None:
        url = f"sqlite:///{folder / 'rules.db'}"
        (folder / "rules.yaml").write_text(rules)
        repository = open_repository(url)
        self.catalog = Catalog([FileRepository([str(folder / "rules.yaml")]), repository], NEVER)
        settings = Settings(rules_store=url, server=Server(limits=Ceilings(PLENTY, PLENTY, PLENTY, PLENTY)))
        self.node = Limiter("memory://")
        self.guard = Guard(Keys(lambda: self.catalog.keys, KEY), settings.server, self.node)
        self.parts = Parts(
            settings=settings,
            limiter=AsyncLimiter(catalog=self.catalog),
            repository=repository,
            locks=open_locks(url),
            history=open_history(url),
            tally=Tally(),
            board=Board(folder / "boards", 0),
            neighbours=Neighbours(str(folder), 0),
            store_titles=("memory", "SQLite"),
            started_us=0,
        )
        self.control = make_control(self.parts)
        self.answering = self._dispatch(self.parts)
        config = uvicorn.Config(
            self,
            http=QuickConnection,
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
        """A client of the same service with nothing counted yet, on this clock."""
        return self.on(MemoryStore(clock=clock))

    def on(self, store: Store, on_store_error: OnStoreError = "open") -> ServiceStore:
        """A client of the same service with its counters there."""
        limiter = AsyncLimiter(store, catalog=self.catalog, on_store_error=on_store_error)
        self.answering = self._dispatch(replace(self.parts, limiter=limiter))
        return ServiceStore(Place("127.0.0.1", self.port, KEY), timeout_ms=PATIENCE_MS)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.catalog.close()
        self.parts.locks.close()
        self.parts.history.close()

    def _dispatch(self, parts: Parts) -> Dispatch:
        plane = DataPlane(parts, CheckCeiling(PLENTY, self.node), None, self.guard)
        envoy = Envoy(plane, parts.descriptors)
        return Dispatch(parts, self.guard, plane, self.control, {}, None, RequestLog(parts.settings.logs), envoy)

    @property
    def quick(self) -> dict[bytes, Any]:
        """What the connections look at."""
        return self.answering.quick

    def at_once(self, *asked: Any) -> Any:
        return self.answering.at_once(*asked)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await self.answering(scope, receive, send)
