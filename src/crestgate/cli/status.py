"""`crestgate status`: stores, breakers, workers, rules in force, and whether the failure policy decides now."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import typer

from crestgate.cli.checks import STORE_TIMEOUT
from crestgate.cli.local_service import LocalService, find_local_service
from crestgate.cli.locations import (
    ConfigOption,
    JsonOption,
    TokenOption,
    UrlOption,
    default_rules_store,
    load_settings_for,
    store_of,
)
from crestgate.cli.output import Cell, Column, format_duration, print_json, print_line, print_table
from crestgate.cli.remote import remote_service
from crestgate.config.default_folder import has_default_store
from crestgate.config.settings import Settings
from crestgate.errors import CrestgateError
from crestgate.limiter.store_probe import probe_batches
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Source
from crestgate.rules.storage.factory import open_repository
from crestgate.runtime.url_options import redact_url
from crestgate.service.observability.store_status import ProbedStore, servers_of, store_entries, stores_of
from crestgate.stores.factory import open_store
from crestgate.stores.remote_store import RemoteStore
from crestgate.stores.spec import Urls

__all__ = ["policy_note", "status"]

STORE_COLUMNS = (
    *(Column("store"), Column("url", wraps=True), Column("reachable"), Column("breaker", drop_order=1)),
    Column("last error", wraps=True, drop_order=2),
)
WORKER_COLUMNS = (
    *(Column("worker"), Column("pid"), Column("started"), Column("state")),
    Column("policy decisions, last minute"),
)
UNREACHABLE = 1


def status(
    config: ConfigOption = None, url: UrlOption = None, token: TokenOption = None, as_json: JsonOption = False
) -> None:
    """Show stores, workers, rules and the failure policy.

    Whether stores are reachable, breakers, the rules in force, and whether the failure policy decides now; of the
    service in this folder, or of another (--url). Exits with 1 if a store is unreachable or the failure policy decides.

    \b
    crestgate status
    crestgate status --url http://127.0.0.1:8080 --json
    """
    service = remote_service(url, token, config=config)
    data = _local_status(config) if service is None else {"service": service.title, **service.get("/api/v1/status")}
    if as_json:
        print_json(data)
    else:
        _print(data)
    if data.get("policy_decides_now") or not all(store["reachable"] for store in data["stores"]):
        raise typer.Exit(UNREACHABLE)


def policy_note(data: Mapping[str, Any]) -> str | None:
    """A line about what the failure policy decided lately; None for nothing."""
    number = data.get("policy_decisions_last_minute") or 0
    if not number and not data.get("policy_decides_now"):
        return None
    now = "decides now" if data.get("policy_decides_now") else "decided lately"
    return f"the failure policy {now}: {number} checks in the last minute were not decided by the store"


def _local_status(config: str | None) -> dict[str, Any]:
    settings = load_settings_for(config)
    service = find_local_service()
    running: dict[str, Any] = {"workers": [], "policy_decides_now": False, "policy_decisions_last_minute": 0}
    if service is not None:
        running = service.status()
    return {
        "service": None if service is None else service.title,
        **running,
        "stores": _local_stores(settings, service),
        "rules": _local_rules(settings),
        "failure_policy": settings.on_store_error,
    }


def _local_stores(settings: Settings, service: LocalService | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if settings.store_is_set or has_default_store():
        probed = {setting: _probe(urls) for setting, urls in stores_of(store_of(settings)).items()}
        found = store_entries(probed, [] if service is None else service.workers())
    url = default_rules_store(settings)
    if url is not None:
        error = _try(lambda: open_repository(url).close())
        found.append(
            {
                "name": "rule_database",
                "url": redact_url(url),
                "reachable": error is None,
                "breaker": None,
                "last_error": error,
            }
        )
    return found


def _probe(urls: Urls) -> ProbedStore:
    """Count in a store and forget it again, as a service does to find out whether it is reachable."""
    servers: Collection[str] = ()

    def count() -> None:
        nonlocal servers
        store = open_store(urls)
        try:
            if isinstance(store, RemoteStore):
                store.connect()
            for batch in probe_batches(store):
                if isinstance(store, RemoteStore):
                    store.call(batch, time.monotonic() + max(store.timeout, STORE_TIMEOUT))
                else:
                    store.apply(batch)
        finally:
            servers = servers_of(store)  # known once it has tried to connect
            store.close()

    error = _try(count)
    return ProbedStore(urls, error, servers)


def _try(connect: Callable[[], object]) -> str | None:
    try:
        connect()
    except CrestgateError as error:
        return str(error)
    return None


def _local_rules(settings: Settings) -> dict[str, Any]:
    url = default_rules_store(settings)
    try:
        sources: list[Source] = [settings.rule_files(), *([] if url is None else [open_repository(url)])]
        catalog = Catalog(sources)
    except CrestgateError as error:
        return {"in_force": None, "unreadable": None, "sources": [str(error)]}
    try:
        titles = [state.source.title for state in catalog.states]
        return {"in_force": len(catalog.current.rules), "unreadable": len(catalog.unreadable), "sources": titles}
    finally:
        catalog.close()


def _print(data: Mapping[str, Any]) -> None:
    note = policy_note(data)
    if data["workers"]:
        uptime = format_duration(data["uptime_seconds"])
        where = f" on {data['service']}" if data.get("service") else ""
        print_line(f"Crestgate {data['version']}{where}, up {uptime}, on_store_error={data['failure_policy']}")
        print_line(Cell(note, "bold red") if note else Cell("limits hold: the store decides", "green"))
    else:
        print_line(Cell("no running service in ./.crestgate", "yellow"), f", on_store_error={data['failure_policy']}")
    if data["stores"]:
        print_table(STORE_COLUMNS, [_store_row(store) for store in data["stores"]])
    else:
        print_line("no stores yet: `crestgate serve` creates them in ./.crestgate")
    rules = data["rules"]
    unreadable = f", {rules['unreadable']} unreadable" if rules["unreadable"] else ""
    print_line(f"rules in force: {rules['in_force']}{unreadable}, from {', '.join(rules['sources'])}")
    if data["workers"]:
        print_table(WORKER_COLUMNS, [_worker_row(one) for one in data["workers"]])
        missing = data["workers_expected"] - sum(not one["silent"] for one in data["workers"])
        if missing:
            print_line(Cell(f"{missing} of {data['workers_expected']} workers do not respond", "bold red"))


def _worker_row(one: Mapping[str, Any]) -> list[str | Cell]:
    return [
        str(one["worker"]),
        str(one["pid"]),
        str(one["started_at"]),
        Cell(f"silent since {one['seen_at']}", "bold red") if one["silent"] else Cell("ok", "green"),
        str(one["policy_decisions_last_minute"]),
    ]


def _store_row(store: Mapping[str, Any]) -> list[str | Cell]:
    breaker = store["breaker"] or "-"
    return [
        store["name"],
        store["url"],
        Cell("yes", "green") if store["reachable"] else Cell("no", "bold red"),
        Cell(breaker, "" if breaker in ("-", "closed") else "red"),
        store["last_error"] or "-",
    ]
