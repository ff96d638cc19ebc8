"""Where a command finds its settings, its store and its rules, and in whose name it writes.

An option comes first, then the environment, then the file: `--config`, else HEADGATE_CONFIG, else ./headgate.yaml if
there is one. The file and the environment are read as the service reads them, with all their mistakes told.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated
from urllib.parse import quote

import typer

from headgate.config.settings import DEFAULT_STORE, Settings, load_settings
from headgate.errors import ConfigError, StoreError
from headgate.rules.repositories.opening import open_repository
from headgate.rules.repositories.port import Actor, Repository

__all__ = [
    "USUAL_CONFIG",
    "ConfigOption",
    "CountersOption",
    "JsonOption",
    "RulesStoreOption",
    "StoreOption",
    "actor",
    "config_path",
    "repository_of",
    "settings_of",
    "store_of",
]

USUAL_CONFIG = "headgate.yaml"
USUAL_FOLDER = ".headgate"
USUAL_COUNTERS = "counters"
"""The file in that folder with the counters of whoever has named no store."""

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", "-c", metavar="FILE", help="Settings [HEADGATE_CONFIG, else ./headgate.yaml if there]."),
]
StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="Where counters live [HEADGATE_STORE, else settings].")
]
CountersOption = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help="Where counters live [HEADGATE_STORE, else settings, else ./.headgate/counters]."
    ),
]
RulesStoreOption = Annotated[
    str | None,
    typer.Option(
        "--rules-store", metavar="URL", help="Where rules are kept [HEADGATE_RULES_STORE, else settings]; or a file."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def config_path(option: str | None) -> str | None:
    """The file with the settings, or None when there is none."""
    named = option or os.environ.get("HEADGATE_CONFIG")
    if named:
        return named
    return USUAL_CONFIG if os.path.exists(USUAL_CONFIG) else None


def settings_of(option: str | None) -> Settings:
    return load_settings(config_path(option), os.environ)


def store_of(option: str | None, settings: Settings) -> str | tuple[str, ...]:
    """Where the counters live: in a file of this folder, unless somebody says. A command is a process of its own, so
    memory is no place for them."""
    if option:
        return option
    if not settings.names_store:
        return _usual_store()
    if settings.store == DEFAULT_STORE:
        raise ConfigError(
            "which store? Write --store URL, or set HEADGATE_STORE: counters in memory:// would be forgotten at once, "
            "when this command ends"
        )
    return settings.store


def _usual_store() -> str:
    """Shared memory in this folder, which is made if it is not there: for this user alone, as are the counters."""
    folder = os.path.abspath(USUAL_FOLDER)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make the folder {folder} for the counters: {error.strerror}; name a store with --store URL"
        ) from error
    return f"shared://{quote(os.path.join(folder, USUAL_COUNTERS))}"


@contextmanager
def repository_of(rules_store: str | None, config: str | None) -> Iterator[Repository]:
    """The rules that a command is about: those of a database, else those in the settings, which are only read."""
    url = rules_store or os.environ.get("HEADGATE_RULES_STORE", "").strip()
    if url:
        repository = open_repository(url)
    else:
        settings = settings_of(config)
        if settings.rules_store is not None:
            repository = open_repository(settings.rules_store)
        elif settings.files.paths or settings.files.records:
            repository = settings.rule_files()
        else:
            raise ConfigError(
                "which rules? Write --rules-store URL, set HEADGATE_RULES_STORE, or name settings with --config FILE"
            )
    try:
        yield repository
    finally:
        repository.close()


def actor() -> Actor:
    """Who writes, for the audit log: the user of this machine, and the machine."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have a number only
        name = str(os.getuid())
    return Actor(f"cli:{name}", socket.gethostname())
