"""How far a migration of the counters is: `/api/v1/migration`."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from crestgate.databases.migration_report import migration_of, migration_report
from crestgate.errors import NotFoundError
from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.service.admin.context import AdminContext, ContextDep
from crestgate.service.admin.models import MigrationReport
from crestgate.service.admin.responses import describe, json_response
from crestgate.service.observability.snapshot import merge_snapshots
from crestgate.stores.spec import Migration

__all__ = ["migration_report_of", "router"]

MAX_AGE_SECONDS = 10.0
"""Listing a large store takes long: all requests within this time get one report."""
_lock = fork_safe_lock()
_latest: dict[Migration, tuple[float, dict[str, Any]]] = {}
router = APIRouter(tags=["statistics"])


@router.get("/api/v1/migration", **describe("Read the progress of a migration", MigrationReport, 404))
def read_migration(context: ContextDep) -> Response:
    """The stores of `migrate`, what is moved, and how many counters are in each; up to ten seconds old."""
    report = migration_report_of(context)
    if report is None:
        raise NotFoundError("no migration is configured: there is no `migrate` in the settings")
    return json_response(report)


def migration_report_of(context: AdminContext) -> dict[str, Any] | None:
    """The report; None where no migration is configured. It waits for the stores, so call it in a thread."""
    migration = migration_of(context.dependencies.settings.store)
    return None if migration is None else _report(context, migration)


def _report(context: AdminContext, migration: Migration) -> dict[str, Any]:
    with _lock:  # one at a time
        at, report = _latest.get(migration, (0.0, None))
        if report is None or time.monotonic() - at >= MAX_AGE_SECONDS:
            snapshots = context.dependencies.worker_snapshots.snapshots()
            merged = merge_snapshots(snapshots, context.now_us())
            carried = {name: merged.counter(name) for name in merged.counters}
            report = migration_report(migration, carried)
            _latest.clear()
            _latest[migration] = time.monotonic(), report
        return report
