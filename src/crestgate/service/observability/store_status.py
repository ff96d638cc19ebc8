"""The stores of the counters in the status of a node: the same rows from `/api/v1/status` and `crestgate status`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from crestgate.runtime.url_options import redact_url
from crestgate.service.observability.snapshot import WorkerStatus
from crestgate.stores.port import Store
from crestgate.stores.remote_store import COUNTERS, RemoteStore
from crestgate.stores.spec import Migration, NamedStores, StoreSpec, Urls, store_urls

__all__ = ["ProbedStore", "servers_of", "store_entries", "stores_of"]

WORST_FIRST: Final = ("open", "half-open", "closed")
NAMES: Final = {COUNTERS: "default", "migrate.from": "from", "migrate.to": "to"}


class ProbedStore(NamedTuple):
    """One store, and whether it counts."""

    urls: Urls
    error: str | None
    """Of the probe; None if the store is reachable."""
    servers: Collection[str]
    """The names of its breakers."""


def stores_of(spec: StoreSpec) -> dict[str, Urls]:
    """The stores of the settings, by the setting of each: as `RemoteStore.parts` names them.

    >>> stores_of(NamedStores(Migration("sqlite:///a", "redis://b"), {"hot": "redis://c"}))
    {'migrate.from': 'sqlite:///a', 'migrate.to': 'redis://b', 'stores.hot': 'redis://c'}
    """
    if isinstance(spec, NamedStores):
        return stores_of(spec.default) | {f"stores.{name}": urls for name, urls in spec.named.items()}
    if isinstance(spec, Migration):
        return {"migrate.from": spec.source, "migrate.to": spec.to}
    return {COUNTERS: spec}


def servers_of(store: Store) -> Collection[str]:
    return store.breakers().keys() if isinstance(store, RemoteStore) else ()


def store_entries(stores: Mapping[str, ProbedStore], workers: Sequence[WorkerStatus]) -> list[dict[str, Any]]:
    """A row for each store, with the breakers of all workers."""
    entries = []
    alone = len(stores) == 1
    for setting, store in stores.items():
        states = [
            state for worker in workers for name, state in worker.breakers.items() if alone or name in store.servers
        ]
        error = store.error or next((error for _, error in states if error), None)
        if error is None and alone and workers:
            error = max(workers, key=lambda worker: worker.policy_decided_us).last_error or None
        entries.append(
            {
                "name": NAMES.get(setting, setting.removeprefix("stores.")),
                "url": ", ".join(map(redact_url, store_urls(store.urls))),
                "reachable": store.error is None,
                "breaker": next((state for state in WORST_FIRST if state in [one for one, _ in states]), None),
                "last_error": error,
            }
        )
    return entries
