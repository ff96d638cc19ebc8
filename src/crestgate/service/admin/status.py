"""Status of this node: `/api/v1/status`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from crestgate.runtime.url_options import redact_url
from crestgate.service.admin.context import AdminContext, ContextDep
from crestgate.service.admin.responses import describe, json_response
from crestgate.service.admin.status_models import ServiceStatus
from crestgate.service.observability.health import RULE_DATABASE, ReadinessResult
from crestgate.service.observability.node_status import is_current, node_status
from crestgate.service.observability.snapshot import Snapshot, WorkerStatus
from crestgate.service.observability.store_status import ProbedStore, servers_of, store_entries, stores_of
from crestgate.service.observability.worker_status import worker_status
from crestgate.stores.remote_store import RemoteStore

__all__ = ["router"]

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


def _stores(context: AdminContext, readiness: ReadinessResult, workers: Sequence[WorkerStatus]) -> list[dict[str, Any]]:
    """The stores of the counters, as the probes found them."""
    store = context.dependencies.limiter.store
    parts = store.parts() if isinstance(store, RemoteStore) else {}
    probed = {
        setting: ProbedStore(urls, readiness.error(setting), servers_of(parts.get(setting, store)))
        for setting, urls in stores_of(context.dependencies.settings.store).items()
    }
    return store_entries(probed, workers)


def _rule_database(context: AdminContext, readiness: ReadinessResult) -> dict[str, Any]:
    url = context.dependencies.settings.rules_store
    return {
        "name": RULE_DATABASE,
        "url": redact_url(url) if url is not None else context.dependencies.repository.title,
        "reachable": RULE_DATABASE not in readiness.unreachable,
        "breaker": None,
        "last_error": readiness.error(RULE_DATABASE),
    }
