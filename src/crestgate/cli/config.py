"""`crestgate config check`: validate a configuration, and summarise it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer

from crestgate.cli.groups import command_group
from crestgate.cli.locations import config_path, load_settings_for, open_rules
from crestgate.cli.output import Cell, print_error, print_line
from crestgate.cli.serve import check_packages
from crestgate.config.default_folder import default_rules_url, default_store_note, has_default_rules, has_default_store
from crestgate.config.location import no_config
from crestgate.config.settings import Settings
from crestgate.errors import CrestgateError, ValidationError
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Record
from crestgate.rules.records import POLICY_IDS
from crestgate.runtime.url_options import redact_url
from crestgate.service.auth.keys import ApiKeys
from crestgate.service.preflight import ADMIN_KEY, check_settings, refuse_beyond_loopback
from crestgate.stores.factory import open_store
from crestgate.stores.remote_store import RemoteStore
from crestgate.stores.spec import Migration, NamedStores, StoreSpec, Urls, store_urls

__all__ = ["config_app"]

config_app = command_group("Validate a configuration.")


@config_app.command("check")
def check(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="The settings [CRESTGATE_CONFIG, else crestgate.yaml].")
    ] = None,
    connect: Annotated[bool, typer.Option("--connect", help="Also connect to the store and the rules store.")] = False,
) -> None:
    """Validate a configuration, and print a summary, or every error with its file and line.

    `crestgate serve` starts with a valid configuration, if it can reach its stores and bind its addresses. Without
    --connect, nothing is connected to or created.
    """
    path = config_path(file)
    if path is None:
        raise no_config("name the file, as `crestgate config check FILE`, or write one")
    settings = load_settings_for(path)
    if settings.mode == "service":
        check_packages()
        settings = check_settings(settings, os.environ)
    print_line(f"{path}: ", Cell("valid", "bold green"))
    for name, value in _summary(path, settings):
        print_line(f"  {name:<14}  {value}")
    if connect and not _connect_all(settings):
        raise typer.Exit(2)


def _summary(path: str, settings: Settings) -> list[tuple[str, str]]:
    rules = [path, *settings.include]
    if settings.rules_store is not None:
        rules.append(redact_url(settings.rules_store))
    rows = [
        ("mode", settings.mode),
        *_store_rows(settings.store, _store_note(settings)),
        ("on_store_error", settings.on_store_error),
        ("rules from", ", ".join(rules)),
        ("in files", summarise(settings.records)),
    ]
    if settings.descriptors_summary is not None:
        rows.append(("envoy", settings.descriptors_summary))
    return rows


def _store_rows(store: StoreSpec, note: str) -> list[tuple[str, str]]:
    """The default store, a migration, and the stores that rules name."""
    if isinstance(store, NamedStores):
        named = [f"{name}: {_shown(urls)}" for name, urls in store.named.items()]
        return [*_store_rows(store.default, note), ("stores", "; ".join(named))]
    if isinstance(store, Migration):
        moved = f"{store.percent:g} % of the subjects"
        for name, some in (("rules", store.rules), ("endpoints", store.endpoints)):
            moved += f", {name} {', '.join(some)}" if some else ""
        return [("store", _shown(store.source)), ("migrate", f"to {_shown(store.to)}: {moved}")]
    return [("store", _shown(store) + note)]


def _shown(urls: Urls) -> str:
    return ", ".join(map(redact_url, store_urls(urls)))


def _store_note(settings: Settings) -> str:
    """What a service has by default differs by system."""
    return "" if settings.store_is_set or settings.mode == "embedded" else default_store_note()


def summarise(records: Iterable[Record]) -> str:
    """Counts by kind: `3 rules, 1 plan, 2 tiers`."""
    kinds = Counter(record.kind for record in records if record.id != POLICY_IDS)
    counts = [f"{kinds[kind]} {kind}{'' if kinds[kind] == 1 else 's'}" for kind in ("rule", "plan", "tier", "default")]
    return ", ".join(count for count in counts if not count.startswith("0 ")) or "nothing"


def _connect_all(settings: Settings) -> bool:
    """Connect to the stores of the settings, and print the results. The files that a service creates in its folder at
    the first start are not created."""
    results = []
    if settings.mode == "embedded" or settings.store_is_set or has_default_store():
        results.append(_report("store", lambda: _connect_store(settings)))
    else:
        print_line("  store: created at the first start")
    url = settings.rules_store
    if url is not None and (url != default_rules_url() or has_default_rules()):
        results.append(_report("rules_store", lambda: _connect_rules(settings, url)))
    elif settings.mode == "service":
        print_line("  rules_store: created at the first start")
        results.append(_report("server", lambda: _check_keys(settings, {}), ""))
    return all(results)


def _check_keys(settings: Settings, keys: Mapping[str, Mapping[str, Any]]) -> str:
    """As at the start of a service: without an admin key it listens on loopback only."""
    admin_key = os.environ.get(ADMIN_KEY, "").strip() or None
    admins = ApiKeys(lambda: keys, admin_key).admins(time.time_ns() // 1000)
    if settings.mode == "service" and not admins and not settings.server.insecure:
        refuse_beyond_loopback(settings.server)
    return ""


def _report(name: str, connect: Callable[[], str], success: str = "reached") -> bool:
    try:
        detail = connect()
    except CrestgateError as error:
        print_error(f"{name}: {error}")
        return False
    if success:
        print_line(f"  {name}: ", Cell(success, "green"), f", {detail}" if detail else "")
    return True


def _connect_store(settings: Settings) -> str:
    store = open_store(settings.store)
    try:
        if isinstance(store, RemoteStore):
            store.connect()
        return ""
    finally:
        store.close()


def _connect_rules(settings: Settings, url: str) -> str:
    """Also loads the rules: invalid ones would not be in force."""
    repository = open_rules(url)
    catalog = Catalog([settings.rule_files(), repository])
    try:
        if catalog.unreadable:
            raise ValidationError([problem for one in catalog.unreadable for problem in one.problems])
        changes = repository.changes(0)
        _check_keys(settings, catalog.keys)
        return f"{repository.title}: {summarise(changes.records if changes is not None else ())}"
    finally:
        catalog.close()
