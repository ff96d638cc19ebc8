"""Where a command finds its settings, its store and its rules, and in whose name it writes.

An option comes first, then the environment, then the file: `--config`, else HEADGATE_CONFIG, else ./headgate.yaml if
there is one. The file and the environment are read as the service reads them, with all their mistakes told. Where none
of these names a store or a rule database, commands use what `headgate serve` makes in ./.headgate.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from headgate.cli.showing import complain
from headgate.config.settings import DEFAULT_STORE, Settings, load_settings
from headgate.config.usual import has_usual_rules, make_usual_folder, usual_rules_store, usual_store
from headgate.errors import ConfigError
from headgate.rules.repositories.opening import open_repository
from headgate.rules.repositories.port import Actor, Repository
from headgate.stores.options import Options, masked

__all__ = [
    "USUAL_CONFIG",
    "ConfigOption",
    "CountersOption",
    "JsonOption",
    "RulesStoreOption",
    "StoreOption",
    "TokenOption",
    "UrlOption",
    "actor",
    "check_there",
    "config_path",
    "default_rules_store",
    "key_store",
    "open_rules",
    "refuse",
    "repository_of",
    "settings_of",
    "store_of",
]

USUAL_CONFIG = "headgate.yaml"

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
        "--rules-store",
        metavar="URL",
        help="Where rules are kept, or a file [HEADGATE_RULES_STORE, else settings, else ./.headgate/rules.db].",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Ask a running service instead [HEADGATE_URL], such as http://127.0.0.1:8080."
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        help="Its key [HEADGATE_ADMIN_KEY]. Prefer the variable: others on this machine can see a command's options.",
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
    if not option and not settings.names_store:
        make_usual_folder("name a store with --store URL")
        return usual_store()
    store = option or settings.store
    if isinstance(store, str) and store.lower().startswith(DEFAULT_STORE):
        raise ConfigError(
            "which store? Write --store URL, or set HEADGATE_STORE: counters in memory:// would be forgotten at once, "
            "when this command ends"
        )
    return store


def key_store(option: str | None, config: str | None) -> str:
    """Where the keys of a service are: in its rule database, which is a file of this folder, unless somebody says."""
    url = option or os.environ.get("HEADGATE_RULES_STORE", "").strip() or settings_of(config).rules_store
    return url or usual_rules_store()


def default_rules_store(settings: Settings) -> str | None:
    """The rule database that nobody names on the command line: that of the settings, else the file of this folder that
    the service has made; None where there is neither."""
    return settings.rules_store or (usual_rules_store() if has_usual_rules() else None)


def refuse(path: str, url: str) -> Repository:
    """What becomes of a database whose file is not there, where it is only looked at: one that was made by looking
    would hide a slip in its name."""
    raise ConfigError(
        f"SQLite file {path}: there is no such file: mend its name, or make it with `headgate rules apply` or "
        f"`headgate db upgrade --rules-store '{masked(url)}'`"
    )


@contextmanager
def repository_of(
    rules_store: str | None, config: str | None, if_missing: Callable[[str, str], Repository] = refuse
) -> Iterator[Repository]:
    """The rules that a command is about: those of a database, which is a file of this folder unless somebody says, else
    those in the settings, which are only read. `if_missing` is asked, with its path and the URL, for what is to stand
    for a SQLite file that is not there."""
    url: str | None = rules_store or os.environ.get("HEADGATE_RULES_STORE", "").strip()
    settings = None if url else settings_of(config)
    if url:
        repository = open_rules(url, if_missing)
    else:
        assert settings is not None
        repository = _unnamed_rules(settings, if_missing)
    try:
        yield repository
    finally:
        repository.close()


def _unnamed_rules(settings: Settings, if_missing: Callable[[str, str], Repository]) -> Repository:
    url = default_rules_store(settings)
    if url is not None:
        if settings.rules_store is None and settings.files.records:
            complain(f"{settings.rule_files().title} are not among these: --rules-store FILE looks at them")
        return open_rules(url, if_missing)
    if if_missing is not refuse and not settings.files.records:
        return open_rules(usual_rules_store(), if_missing)
    if settings.files.paths or settings.files.records:
        return settings.rule_files()
    raise ConfigError(
        "which rules? Write --rules-store URL, set HEADGATE_RULES_STORE, or name settings with --config FILE: there is "
        "no ./.headgate/rules.db here, which `headgate serve` makes"
    )


def open_rules(url: str, if_missing: Callable[[str, str], Repository] = refuse) -> Repository:
    """What a URL names, if it is there."""
    missing = _missing_file(url)
    return open_repository(url) if missing is None else if_missing(missing, url)


def check_there(url: str) -> None:
    """The same, for what is opened later."""
    missing = _missing_file(url)
    if missing is not None:
        refuse(missing, url)


def _missing_file(url: str) -> str | None:
    """The file of a SQLite database, if it is not there."""
    if url.partition("://")[0].lower() != "sqlite":
        return None
    path = Options(url).path[1:]
    return None if path in ("", ":memory:") or os.path.exists(path) else os.path.abspath(path)


def actor() -> Actor:
    """Who writes, for the audit log: the user of this machine, and the machine."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have a number only
        name = str(os.getuid())
    return Actor(f"cli:{name}", socket.gethostname())
