"""Status of this node: `/api/v1/status`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from crestgate.runtime.url_options import redact_url
from crestgate.service.admin.context import AdminContext, ContextDep
from crestgate.service.admin.responses import describe, json_response
from crestgate.service.admin.status_models import ServiceStatus
from crestgate.service.observability.health import RULE_DATABASE, ReadinessResult
from crestgate.service.observability.node_status import is_current, node_status, store_name
from crestgate.service.observability.snapshot import Snapshot, WorkerStatus
from crestgate.service.observability.worker_status import worker_status
from crestgate.stores.remote_store import RemoteStore
from crestgate.stores.spec import part_urls, store_urls

__all__ = ["router"]

WORST_FIRST = ("open", "half-open", "closed")
router = APIRouter(tags=["statistics"])


@router.get("/api/v1/status", **describe("Read the status of this node", ServiceStatus))
async def read_status(context: ContextDep) -> Response:
    """Workers, stores, rules in force, and whether the failure policy decides now; for all workers of this node."""
    readiness = await context.health.readiness()
    return json_response(await asyncio.to_thread(_status, context, readiness))


def _status(context: AdminContext, readiness: ReadinessResult) -> dict[str, Any]:
    dependencies = context.dependencies
    now_us = context.now_us()
    snapshots = _snapshots(context, now_us)
    statuses = [one.worker for one in snapshots.values() if one.worker is not None and is_current(one, now_us)]
    catalog = dependencies.catalog
    return {
        **node_status(snapshots, now_us, dependencies.settings.server.workers),
        "stores": [*_stores(context, readiness, statuses), _rule_database(context, readiness)],
        "rules": {
            "in_force": len(catalog.current.rules),
            "unreadable": len(catalog.unreadable),
            "sources": [state.source.title for state in catalog.states],
        },
        "failure_policy": dependencies.limiter.backend.failure.policy,
    }


def _snapshots(context: AdminContext, now_us: int) -> dict[int, Snapshot]:
    """What the workers published; of this one as it is now."""
    dependencies = context.dependencies
    files = dependencies.worker_snapshots
    snapshots = files.by_worker()
    status = worker_status(dependencies.limiter, dependencies.started_us, now_us)
    snapshots[files.worker] = replace(snapshots.get(files.worker, Snapshot()), at_us=now_us, worker=status)
    return snapshots


def _stores(
    context: AdminContext, readiness: ReadinessResult, statuses: Iterable[WorkerStatus]
) -> list[dict[str, Any]]:
    """The stores of the counters, each by its own probe and breakers."""
    store = context.dependencies.limiter.store
    parts = store.parts() if isinstance(store, RemoteStore) else {}
    stores = part_urls(context.dependencies.settings.store)
    workers = list(statuses)
    entries = []
    for probe, urls in stores.items():
        part = parts.get(probe, store)
        servers = part.breakers().keys() if isinstance(part, RemoteStore) else ()
        states = [status.breakers[server] for status in workers for server in servers if server in status.breakers]
        error = next((error for _, error in states if error), None) or readiness.error(probe)
        if error is None and len(stores) == 1:
            latest = max(workers, key=lambda status: status.policy_decided_us)
            error = latest.last_error or None
        entries.append(
            {
                "name": store_name(probe),
                "url": ", ".join(map(redact_url, store_urls(urls))),
                "reachable": probe not in readiness.unreachable,
                "breaker": next((state for state in WORST_FIRST if state in [one for one, _ in states]), None),
                "last_error": error,
            }
        )
    return entries


def _rule_database(context: AdminContext, readiness: ReadinessResult) -> dict[str, Any]:
    url = context.dependencies.settings.rules_store
    return {
        "name": RULE_DATABASE,
        "url": redact_url(url) if url is not None else context.dependencies.repository.title,
        "reachable": RULE_DATABASE not in readiness.unreachable,
        "breaker": None,
        "last_error": readiness.error(RULE_DATABASE),
    }
