"""`/system`: stores, breakers, workers, rule sources and migrations."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from crestgate.errors import CrestgateError
from crestgate.service.admin.migration import migration_report_of
from crestgate.service.admin.status import read_status
from crestgate.service.dashboard.site import Site, page, show
from crestgate.service.observability.snapshot import FRESH_US, Snapshot, merge_snapshots

__all__ = ["ROUTES"]


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker, by the file that it publishes."""

    number: int
    pid: int | None
    started_us: int | None
    at_us: int
    fresh: bool
    allowed: int
    denied: int
    requests: int


async def system(site: Site, request: Request) -> Response:
    dependencies = site.context.dependencies
    now_us = site.now_us()
    status = json.loads(bytes((await read_status(site.context)).body))
    files = await asyncio.to_thread(dependencies.worker_snapshots.by_worker)
    merged = merge_snapshots(files.values(), now_us)
    readiness = await site.feed.readiness()
    catalog = dependencies.catalog
    try:
        migration: Any = await asyncio.to_thread(migration_report_of, site.context)
    except CrestgateError as error:
        migration = {"problem": str(error)}
    return await show(
        site,
        request,
        "system.html",
        node=status,
        ready=readiness.ready,
        workers=[_row(number, snapshot, now_us) for number, snapshot in files.items()],
        sources=[
            (state.source.title, len(state.snapshot.rules), state.source is dependencies.repository)
            for state in catalog.states
        ],
        reload_problem=catalog.reload_problem,
        unreadable=catalog.unreadable[:20],
        store_errors=merged.counter("store_errors"),
        fail_open=merged.counter("fail_open"),
        by_leases=merged.counter("cache_hits", "leases"),
        by_denials=merged.counter("cache_hits", "denials"),
        reload_failures=merged.counter("rules_reload_failures"),
        migration=migration,
    )


def _row(number: int, snapshot: Snapshot, now_us: int) -> WorkerRow:
    return WorkerRow(
        number,
        None if snapshot.worker is None else snapshot.worker.pid,
        None if snapshot.worker is None else snapshot.worker.started_us,
        snapshot.at_us,
        snapshot.at_us >= now_us - FRESH_US,
        sum(snapshot.counters.get("allowed", {}).values()),
        sum(snapshot.counters.get("blocked", {}).values()),
        sum(snapshot.counters.get("requests", {}).values()),
    )


ROUTES = [page("/system", system)]
