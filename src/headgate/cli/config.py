"""`headgate config check`: whether a configuration can be used, and what it says in short."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer

from headgate.cli.groups import command_group
from headgate.cli.places import USUAL_CONFIG, config_path, open_rules, settings_of
from headgate.cli.showing import Cell, complain, say
from headgate.config.settings import Settings
from headgate.config.usual import has_usual_rules, has_usual_store, usual_rules_store
from headgate.errors import HeadgateError
from headgate.rules.catalog import Catalog
from headgate.rules.records import POLICY_IDS
from headgate.rules.repositories.port import Record
from headgate.service.auth.keys import Keys
from headgate.service.starting import ADMIN_KEY, checked, refuse_beyond_loopback
from headgate.stores.options import masked
from headgate.stores.remote import RemoteStore
from headgate.stores.url import open_store

__all__ = ["config_app"]

config_app = command_group("Look at a configuration.")


@config_app.command("check")
def check(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="The settings [HEADGATE_CONFIG, else headgate.yaml].")
    ] = None,
    connect: Annotated[bool, typer.Option("--connect", help="Also reach the store and the rules store.")] = False,
) -> None:
    """Check a configuration as a whole, and say what is in it, or every mistake with its place.

    What is fine here, `headgate serve` starts with, as long as it reaches its stores and may have its addresses.
    Nothing is connected to or made, unless --connect is given.
    """
    path = config_path(file) or USUAL_CONFIG
    settings = settings_of(path)
    if settings.mode == "service":
        settings = checked(settings, os.environ)
    say(f"{path}: ", Cell("fine", "bold green"))
    for name, value in _summary(path, settings):
        say(f"  {name:<14}  {value}")
    if connect and not _reached(settings):
        raise typer.Exit(2)


def _summary(path: str, settings: Settings) -> list[tuple[str, str]]:
    stores = [settings.store] if isinstance(settings.store, str) else list(settings.store)
    rules = [path, *settings.include]
    if settings.rules_store is not None:
        rules.append(masked(settings.rules_store))
    rows = [
        ("mode", settings.mode),
        ("store", ", ".join(map(masked, stores))),
        ("on_store_error", settings.on_store_error),
        ("rules from", ", ".join(rules)),
        ("in files", counted(settings.records)),
    ]
    if settings.descriptors_told is not None:
        rows.append(("envoy", settings.descriptors_told))
    return rows


def counted(records: Iterable[Record]) -> str:
    """How many there are of each kind, in words: `3 rules, 1 plan, 2 tiers`."""
    kinds = Counter(record.kind for record in records if record.id != POLICY_IDS)
    words = [f"{kinds[kind]} {kind}{'' if kinds[kind] == 1 else 's'}" for kind in ("rule", "plan", "tier", "default")]
    return ", ".join(word for word in words if not word.startswith("0 ")) or "nothing"


def _reached(settings: Settings) -> bool:
    """Reach what the settings name, one after the other, and say how that went. What a service makes in its folder at
    the first start is not made for it."""
    results = []
    if settings.mode == "embedded" or settings.names_store or has_usual_store():
        results.append(_told("store", lambda: _reach_store(settings)))
    else:
        say("  store: made at the first start")
    url = settings.rules_store
    if url is not None and (url != usual_rules_store() or has_usual_rules()):
        results.append(_told("rules_store", lambda: _reach_rules(settings, url)))
    elif settings.mode == "service":
        say("  rules_store: made at the first start")
        results.append(_told("server", lambda: _check_keys(settings, {}), ""))
    return all(results)


def _check_keys(settings: Settings, keys: Mapping[str, Mapping[str, Any]]) -> str:
    """As a start does: without an admin key, a service listens on this machine alone."""
    given = os.environ.get(ADMIN_KEY, "").strip() or None
    admins = Keys(lambda: keys, given).admins(time.time_ns() // 1000)
    if settings.mode == "service" and not admins and not settings.server.insecure:
        refuse_beyond_loopback(settings.server)
    return ""


def _told(name: str, reach: Callable[[], str], fine: str = "reached") -> bool:
    try:
        said = reach()
    except HeadgateError as error:
        complain(f"{name}: {error}")
        return False
    if fine:
        say(f"  {name}: ", Cell(fine, "green"), f", {said}" if said else "")
    return True


def _reach_store(settings: Settings) -> str:
    store = open_store(settings.store)
    try:
        if isinstance(store, RemoteStore):
            store.connect()
        return ""
    finally:
        store.close()


def _reach_rules(settings: Settings, url: str) -> str:
    """The rules there are read too: those that nobody can use would stop a start as well."""
    repository = open_rules(url)
    catalog = Catalog([settings.rule_files(), repository])
    try:
        changes = repository.changes(0)
        _check_keys(settings, catalog.keys)
        return f"{repository.title}: {counted(changes.records if changes is not None else ())}"
    finally:
        catalog.close()
