"""`headgate config check`: whether a configuration can be used, and what it says in short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from headgate.cli.places import USUAL_CONFIG, config_path, open_rules, settings_of
from headgate.cli.showing import Cell, complain, say
from headgate.config.settings import Settings
from headgate.config.urls import check_serving
from headgate.errors import HeadgateError
from headgate.rules.catalog import Catalog
from headgate.rules.records import POLICY_IDS
from headgate.rules.repositories.port import Record
from headgate.stores.options import masked
from headgate.stores.remote import RemoteStore
from headgate.stores.url import open_store

__all__ = ["config_app"]

config_app = typer.Typer(help="Look at a configuration.")


@config_app.callback()
def _config() -> None:
    """Look at a configuration."""


@config_app.command("check")
def check(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="The settings [HEADGATE_CONFIG, else headgate.yaml].")
    ] = None,
    connect: Annotated[bool, typer.Option("--connect", help="Also reach the store and the rules store.")] = False,
) -> None:
    """Check a configuration as a whole, and say what is in it, or every mistake with its place.

    Nothing is connected to or made, unless --connect is given.
    """
    path = config_path(file) or USUAL_CONFIG
    settings = settings_of(path)
    if settings.mode == "service":
        check_serving(settings.store)
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
    """Reach what the settings name, one after the other, and say how that went."""
    results = [_told("store", lambda: _reach_store(settings))]
    if settings.rules_store is not None:
        url = settings.rules_store
        results.append(_told("rules_store", lambda: _reach_rules(settings, url)))
    return all(results)


def _told(name: str, reach: Callable[[], str]) -> bool:
    try:
        said = reach()
    except HeadgateError as error:
        complain(f"{name}: {error}")
        return False
    say(f"  {name}: ", Cell("reached", "green"), f", {said}" if said else "")
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
        return f"{repository.title}: {counted(changes.records if changes is not None else ())}"
    finally:
        catalog.close()
