"""`crestgate status`: stores, breakers, workers, rules in force, and whether the failure policy decides now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer

from crestgate.cli.local_service import LocalService, find_local_service
from crestgate.cli.locations import (
    ConfigOption,
    JsonOption,
    TokenOption,
    UrlOption,
    default_rules_store,
    load_settings_for,
)
from crestgate.cli.output import Cell, Column, format_duration, print_json, print_line, print_table
from crestgate.cli.remote import remote_service
from crestgate.config.default_folder import default_store_url, has_default_store
from crestgate.config.settings import Settings
from crestgate.errors import CrestgateError
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Source
from crestgate.rules.storage.factory import open_repository
from crestgate.runtime.url_options import redact_url
from crestgate.service.observability.node_status import store_name
from crestgate.stores.factory import open_store
from crestgate.stores.remote_store import RemoteStore
from crestgate.stores.spec import Urls, part_urls, store_urls

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
    data = service.get("/api/v1/status") if service is not None else _local_status(config)
    if as_json:
        print_json(data)
    else:
        _print(data)
    if data.get("fail_open_now") or not all(store["reachable"] for store in data["stores"]):
        raise typer.Exit(UNREACHABLE)


def policy_note(data: Mapping[str, Any]) -> str | None:
    """A line about what the failure policy decided lately; None for nothing."""
    number = data.get("policy_decisions_last_minute") or 0
    if not number and not data.get("fail_open_now"):
        return None
    now = "decides now" if data.get("fail_open_now") else "decided lately"
    return f"the failure policy {now}: {number} checks in the last minute were not decided by the store"


def _local_status(config: str | None) -> dict[str, Any]:
    settings = load_settings_for(config)
    service = find_local_service()
    running: dict[str, Any] = {"workers": [], "fail_open_now": False, "policy_decisions_last_minute": 0}
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
    found = []
    if settings.store_is_set or has_default_store():
        parts = part_urls(settings.store if settings.store_is_set else default_store_url())
        found = [_store(probe, urls, service, len(parts) == 1) for probe, urls in parts.items()]
    url = default_rules_store(settings)
    if url is not None:
        found.append(_entry("rule_database", redact_url(url), _try(lambda: open_repository(url).close())))
    return found


def _store(probe: str, urls: Urls, service: LocalService | None, is_only: bool) -> dict[str, Any]:
    servers: set[str] = set()
    entry = _entry(
        store_name(probe), ", ".join(map(redact_url, store_urls(urls))), _try(lambda: _connect(urls, servers))
    )
    known = {} if service is None else service.breakers()
    states = [state for server, state in known.items() if is_only or server in servers]
    for state in ("open", "half-open", "closed"):
        if state in (one for one, _ in states):
            entry["breaker"] = state
            break
    entry["last_error"] = entry["last_error"] or next((error for _, error in states if error), None)
    return entry


def _entry(name: str, url: str, error: str | None) -> dict[str, Any]:
    return {"name": name, "url": url, "reachable": error is None, "breaker": None, "last_error": error}


def _try(connect: Callable[[], object]) -> str | None:
    try:
        connect()
    except CrestgateError as error:
        return str(error)
    return None


def _connect(urls: Urls, servers: set[str]) -> None:
    """Connect to a store, and add the names of its servers."""
    store = open_store(urls)
    try:
        if isinstance(store, RemoteStore):
            store.connect()
    finally:
        servers |= store.breakers().keys() if isinstance(store, RemoteStore) else set()
        store.close()


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
