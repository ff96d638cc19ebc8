"""How far a migration is: what it moves, and how many counters are in each of its stores.

Counters are counted by listing them, which takes time in a large store: a report is for people and scripts, not for
dashboards. Those have the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from crestgate.databases.counter_listing import list_counters
from crestgate.errors import StoreError
from crestgate.runtime.url_options import redact_url
from crestgate.stores.migrating.gate import is_gate
from crestgate.stores.spec import Migration, NamedStores, StoreSpec, Urls, store_urls

__all__ = ["MAX_LISTED", "migration_of", "migration_report"]

MAX_LISTED = 1_000_000
"""Counters of a store that are counted; more than that is not looked at."""


def migration_of(store: StoreSpec) -> Migration | None:
    """The migration of the settings' store, if there is one."""
    default = store.default if isinstance(store, NamedStores) else store
    return default if isinstance(default, Migration) else None


def migration_report(migration: Migration, carried: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The report. `carried` is what a store has counted of itself (`counts`), where there is a running one."""
    share = migration.share
    selects = bool(migration.rules or migration.endpoints)
    report: dict[str, Any] = {
        "from": _side(migration.source, share.has_subject, selects),
        "to": _side(migration.to, lambda key: not share.has_subject(key), selects),
        "percent": migration.percent,
        "rules": list(migration.rules),
        "endpoints": list(migration.endpoints),
    }
    if carried is not None:
        report["carried"] = {
            "to": carried.get("migrate_carried", 0),
            "back": carried.get("migrate_carried_back", 0),
            "from_errors": carried.get("migrate_from_errors", 0),
            "to_errors": carried.get("migrate_to_errors", 0),
        }
    return report


def _side(urls: Urls, leaves: Callable[[str], bool], selects: bool) -> dict[str, Any]:
    """One store: how many counters it has, and how many of them belong into the other one. A counter does not say
    which rule it is of, so that is unknown where only some rules are moved."""
    side: dict[str, Any] = {"store": ", ".join(map(redact_url, store_urls(urls)))}
    counters = leaving = 0
    error = None
    countable = complete = True
    try:
        for url in store_urls(urls):
            listed = list_counters(url)
            countable = countable and listed is not None
            for name, key in listed or ():
                if is_gate(name):
                    continue
                counters += 1
                leaving += leaves(key)
                if counters >= MAX_LISTED:
                    complete = False
                    break
    except StoreError as failed:
        error = str(failed)
    known = countable and error is None
    side["counters"] = counters if known else None
    side["to_move"] = leaving if known and not selects else None
    side["complete"] = complete
    side["error"] = error
    return side
