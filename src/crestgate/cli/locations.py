"""Options that several commands share, and how they find settings, stores and rules.

Precedence: option, environment variable, file (`--config`, else CRESTGATE_CONFIG, else ./crestgate.yaml if it exists).
The file and the environment are read as the service reads them. Where none of these names a store or a rule database,
commands use the ones that `crestgate serve` creates in ./.crestgate.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from crestgate.cli.output import print_error
from crestgate.config.default_folder import default_rules_url, default_store_url, has_default_rules, make_default_folder
from crestgate.config.location import find_config
from crestgate.config.settings import DEFAULT_STORE, Settings, load_settings
from crestgate.errors import ConfigError
from crestgate.rules.port import Actor, Repository
from crestgate.rules.storage.factory import open_repository
from crestgate.runtime.url_options import Options, redact_url
from crestgate.stores.spec import NamedStores, StoreSpec

__all__ = [
    "ConfigOption",
    "CountersOption",
    "JsonOption",
    "RulesStoreOption",
    "StoreOption",
    "TokenOption",
    "UrlOption",
    "actor",
    "check_exists",
    "config_path",
    "default_rules_store",
    "key_store",
    "load_settings_for",
    "open_rules",
    "open_rules_for",
    "refuse_missing",
    "store_of",
    "store_url",
]

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", "-c", metavar="FILE", help="Settings [CRESTGATE_CONFIG, else ./crestgate.yaml, if any]."),
]
StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="Store of the counters [CRESTGATE_STORE, else settings].")
]
CountersOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Store of the counters [CRESTGATE_STORE, else settings, else ./.crestgate/counters].",
    ),
]
RulesStoreOption = Annotated[
    str | None,
    typer.Option(
        "--rules-store",
        metavar="URL",
        help="Store of the rules, or a file [CRESTGATE_RULES_STORE, else settings, else ./.crestgate/rules.db].",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Use a running service instead [CRESTGATE_URL], such as http://127.0.0.1:8080."
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        help="Its key [CRESTGATE_ADMIN_KEY]. Prefer the variable: others on this machine can see a command's options.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def config_path(option: str | None) -> str | None:
    """The file with the settings, or None."""
    return find_config(option, os.environ)


def load_settings_for(option: str | None) -> Settings:
    return load_settings(config_path(option), os.environ)


def store_url(option: str | None, settings: Settings) -> StoreSpec:
    """The store of the counters: by default a file in this folder. Memory is refused: it is lost at exit."""
    if not option and not settings.store_is_set:
        make_default_folder("name a store with --store URL")
    store = option or store_of(settings)
    if isinstance(store, str) and store.lower().startswith(DEFAULT_STORE):
        raise ConfigError(
            "which store? Write --store URL, or set CRESTGATE_STORE: counters in memory:// are lost when "
            "this command ends"
        )
    return store


def store_of(settings: Settings) -> StoreSpec:
    """The store of the counters that `crestgate serve` uses with these settings."""
    if settings.store_is_set:
        return settings.store
    default = default_store_url()
    return NamedStores(default, settings.store.named) if isinstance(settings.store, NamedStores) else default


def key_store(option: str | None, config: str | None) -> str:
    """The rule database with the keys of a service: by default a file in this folder."""
    url = option or os.environ.get("CRESTGATE_RULES_STORE", "").strip() or load_settings_for(config).rules_store
    return url or default_rules_url()


def default_rules_store(settings: Settings) -> str | None:
    """The rule database without an option: that of the settings, else the file in this folder, else None."""
    return settings.rules_store or (default_rules_url() if has_default_rules() else None)


def refuse_missing(path: str, url: str) -> Repository:
    """Default `if_missing`: a command that only reads does not create a database, which would hide a mistyped name."""
    raise ConfigError(
        f"SQLite file {path}: there is no such file: correct its name, or create it with `crestgate rules apply` or "
        f"`crestgate db upgrade --rules-store '{redact_url(url)}'`"
    )


@contextmanager
def open_rules_for(
    rules_store: str | None,
    config: str | None,
    if_missing: Callable[[str, str], Repository] = refuse_missing,
    *,
    lists_rules: bool = False,
) -> Iterator[Repository]:
    """The rules that a command works on: those of a database, by default a file in this folder, else those of the
    settings, read-only. `if_missing` is called with path and URL for a SQLite file that does not exist. A command that
    `lists_rules` notes that those of the settings, which are in force as well, are not among them."""
    url: str | None = rules_store or os.environ.get("CRESTGATE_RULES_STORE", "").strip()
    settings = None if url else load_settings_for(config)
    if url:
        repository = open_rules(url, if_missing)
    else:
        assert settings is not None
        if lists_rules and settings.rules_store is None and settings.files.records and has_default_rules():
            print_error(f"{settings.rule_files().title} are not included: use --rules-store FILE to list them")
        repository = _default_rules(settings, if_missing)
    try:
        yield repository
    finally:
        repository.close()


def _default_rules(settings: Settings, if_missing: Callable[[str, str], Repository]) -> Repository:
    url = default_rules_store(settings)
    if url is not None:
        return open_rules(url, if_missing)
    if if_missing is not refuse_missing and not settings.files.records:
        return open_rules(default_rules_url(), if_missing)
    if settings.files.paths or settings.files.records:
        return settings.rule_files()
    raise ConfigError(
        "which rules? Write --rules-store URL, set CRESTGATE_RULES_STORE, or name settings with --config FILE: there "
        "is no ./.crestgate/rules.db here, which `crestgate serve` creates"
    )


def open_rules(url: str, if_missing: Callable[[str, str], Repository] = refuse_missing) -> Repository:
    """The repository of a URL."""
    missing = _missing_file(url)
    return open_repository(url) if missing is None else if_missing(missing, url)


def check_exists(url: str) -> None:
    """ConfigError for a SQLite file that does not exist."""
    missing = _missing_file(url)
    if missing is not None:
        refuse_missing(missing, url)


def _missing_file(url: str) -> str | None:
    """The path of a SQLite database that does not exist."""
    if url.partition("://")[0].lower() != "sqlite":
        return None
    path = Options(url).path[1:]
    return None if path in ("", ":memory:") or os.path.exists(path) else os.path.abspath(path)


def actor() -> Actor:
    """The user and host name, for the audit log."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError, ImportError):  # in a container the user may have no name; Windows has no pwd
        name = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return Actor(f"cli:{name}", socket.gethostname())
