"""Status of this node: `/api/v1/status`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from crestgate.runtime.url_options import redact_url
from crestgate.service.admin.context import AdminContext, ContextDep
from crestgate.service.admin.responses import describe, json_response
from crestgate.service.admin.status_models import ServiceStatus
from crestgate.service.observability.health import OK
from crestgate.service.observability.node_status import is_current, node_status
from crestgate.service.observability.snapshot import Snapshot, WorkerStatus
from crestgate.service.observability.worker_status import worker_status
from crestgate.stores.remote_store import RemoteStore
from crestgate.stores.spec import Migration, NamedStores, StoreSpec, store_urls
from crestgate.stores.store_group import StoreGroup

__all__ = ["router"]

WORST_FIRST = ("open", "half-open", "closed")
router = APIRouter(tags=["statistics"])


@router.get("/api/v1/status", **describe("Read the status of this node", ServiceStatus))
async def read_status(context: ContextDep) -> Response:
    """Workers, stores, rules in force, and whether the failure policy decides now; for all workers of this node."""
    health = await context.health.readiness()
    return json_response(await asyncio.to_thread(_status, context, health.checks))


def _status(context: AdminContext, checks: Mapping[str, str]) -> dict[str, Any]:
    dependencies = context.dependencies
    now_us = context.now_us()
    snapshots = _snapshots(context, now_us)
    statuses = [one.worker for one in snapshots.values() if one.worker is not None and is_current(one, now_us)]
    catalog = dependencies.catalog
    return {
        **node_status(snapshots, now_us),
        "stores": [
            *_stores(context, checks.get("counters", OK), statuses),
            _rule_database(context, checks.get("rule_database", OK)),
        ],
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


def _stores(context: AdminContext, probed: str, statuses: Iterable[WorkerStatus]) -> list[dict[str, Any]]:
    """The stores of the counters. The probe counts in all of them: if it fails, their breakers tell which."""
    store = context.dependencies.limiter.store
    urls = _urls(context.dependencies.settings.store)
    parts: list[object] = [store] * len(urls)
    if isinstance(store, StoreGroup) and len(urls) == len(store.stores):
        parts = list(store.stores)
    workers = list(statuses)
    entries = []
    for (name, url), part in zip(urls.items(), parts, strict=True):
        servers = part.breakers().keys() if isinstance(part, RemoteStore) else ()
        states = [status.breakers[server] for status in workers for server in servers if server in status.breakers]
        state = next((state for state in WORST_FIRST if state in [one for one, _ in states]), None)
        error = next((error for _, error in states if error), None)
        reachable = probed == OK or (len(urls) > 1 and error is None)
        if error is None and not reachable:
            error = probed
        if error is None and len(urls) == 1:
            latest = max(workers, key=lambda status: status.policy_decided_us)
            error = latest.last_error or None
        entries.append({"name": name, "url": url, "reachable": reachable, "breaker": state, "last_error": error})
    return entries


def _urls(store: StoreSpec) -> dict[str, str]:
    """The stores of the settings by name, without passwords."""
    if isinstance(store, NamedStores):
        return {"default": ", ".join(_urls(store.default).values())} | {
            name: ", ".join(map(redact_url, store_urls(urls))) for name, urls in store.named.items()
        }
    if isinstance(store, Migration):
        return {
            name: ", ".join(map(redact_url, store_urls(urls)))
            for name, urls in (("from", store.source), ("to", store.to))
        }
    return {"default": ", ".join(map(redact_url, store_urls(store)))}


def _rule_database(context: AdminContext, probed: str) -> dict[str, Any]:
    url = context.dependencies.settings.rules_store
    return {
        "name": "rule_database",
        "url": redact_url(url) if url is not None else context.dependencies.repository.title,
        "reachable": probed == OK,
        "breaker": None,
        "last_error": None if probed == OK else probed,
    }
