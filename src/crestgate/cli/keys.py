"""`crestgate keys`: create, list, rotate and revoke the API keys of a service, in its rule database.

No service needs to be running, so the first key is created this way, too. Running ones see a change within a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from crestgate.cli.durations import duration_us, parse_duration
from crestgate.cli.groups import command_group
from crestgate.cli.locations import ConfigOption, JsonOption, actor, key_store, open_rules
from crestgate.cli.output import Cell, Column, escape_control, print_error, print_json, print_line, print_table
from crestgate.config.default_folder import default_rules_url, has_default_rules
from crestgate.errors import ConfigError, NotFoundError, ReadOnlyError, StoreError
from crestgate.loader.fields import Fields, Problems
from crestgate.rules.port import Repository
from crestgate.rules.storage.factory import open_repository
from crestgate.rules.timestamps import format_timestamp, read_timestamp
from crestgate.runtime.url_options import Options, redact_url
from crestgate.service.auth.keys import SCOPES, TOKEN, ApiKey, create_key, list_keys, revoke_key, rotate_key

__all__ = ["keys_app"]

COLUMNS = (
    *(Column("id"), Column("name", wraps=True), Column("scope")),
    *(Column("created", drop_order=1), Column("expires", drop_order=2)),
)
LAST_US = 253_402_300_799_000_000
"""The last second of the year 9999, the latest timestamp that can be formatted."""

keys_app = command_group("Create, list, rotate and revoke the keys of a service.")

KeyStoreOption = Annotated[
    str | None,
    typer.Option(
        "--rules-store",
        metavar="URL",
        help="Its rule database [CRESTGATE_RULES_STORE, else settings, else ./.crestgate/rules.db].",
    ),
]


@keys_app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A descriptive name: ci, grafana, alice.")],
    scope: Annotated[
        str, typer.Option("--scope", metavar="SCOPE", help="check; read: also read rules; write: also change them.")
    ] = "check",
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="WHEN", help="90d, 12h, or a date such as 2030-01-31 [never].")
    ] = None,
    as_json: JsonOption = False,
    rules_store: KeyStoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Create a key, and print its token once, on stdout.

    \b
    crestgate keys create ci --scope write --expires 90d
    """
    known_scope = next((one for one in SCOPES if one == scope.lower()), None)
    if known_scope is None:
        raise ConfigError(f"--scope is one of {', '.join(SCOPES)}, not {scope!r}")
    expires_us = None if expires is None else _parse_expiry(expires, time.time_ns() // 1000)
    with _open(rules_store, config, create=True) as repository:
        key, token = create_key(repository, actor(), name, known_scope, expires_us)
    if as_json:
        print_json({**_data(key), "token": token})
        return
    ends = "" if key.expires_us is None else f" until {format_timestamp(key.expires_us)}"
    print_error(f"key {key.key_id} for {key.name!r}, scope {key.scope}{ends}; its token is shown this once:", prefix="")
    print_line(token)


@keys_app.command("list")
def list_all(as_json: JsonOption = False, rules_store: KeyStoreOption = None, config: ConfigOption = None) -> None:
    """List all keys, without their tokens: only digests are stored."""
    with _open(rules_store, config) as repository:
        keys = list_keys(repository)
    if as_json:
        print_json([_data(key) for key in keys])
    elif keys:
        now_us = time.time_ns() // 1000
        print_table(COLUMNS, [_row(key, now_us) for key in keys])
    else:
        print_line("no keys")


@keys_app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Its id, as `keys list` shows it.")],
    rules_store: KeyStoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Revoke a key, within a second in every service that uses this database."""
    token = TOKEN.fullmatch(key_id)
    if token is not None:  # use only the id of a whole token, and never show the rest
        key_id = token[1]
    with _open(rules_store, config) as repository:
        try:
            revoke_key(repository, actor(), key_id)
        except NotFoundError as error:
            named = [key.key_id for key in list_keys(repository) if key.name == key_id]
            if not named:
                raise
            ids = f"the id {named[0]}" if len(named) == 1 else f"the ids {', '.join(named)}"
            raise NotFoundError(f"{error}: the key with this name has {ids}") from None
    print_line(Cell("revoked", "red"), f"  key {escape_control(key_id)}")


@keys_app.command()
def rotate(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Its id, as `keys list` shows it.")],
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="How long the old token still works: 10m, 1h, 1d.")
    ] = "1h",
    as_json: JsonOption = False,
    rules_store: KeyStoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Create a key with the same name, scope and expiry, and let the old one expire. Prints the new token once.

    \b
    crestgate keys rotate 3f9c02d17ab4 --grace 1h
    """
    token_given = TOKEN.fullmatch(key_id)
    if token_given is not None:  # use only the id of a whole token, and never show the rest
        key_id = token_given[1]
    ends_us = time.time_ns() // 1000 + round(parse_duration(grace, "--grace") * 1_000_000)
    with _open(rules_store, config) as repository:
        key, old, token = rotate_key(repository, actor(), key_id, ends_us)
    if as_json:
        print_json({**_data(key), "token": token, "replaces": _data(old)})
        return
    print_error(
        f"key {key.key_id} replaces {old.key_id} ({old.name!r}, scope {old.scope}), which works until "
        f"{format_timestamp(old.expires_us)}; the new token is shown this once:",
        prefix="",
    )
    print_line(token)


@contextmanager
def _open(rules_store: str | None, config: str | None, *, create: bool = False) -> Iterator[Repository]:
    url = key_store(rules_store, config)
    if not rules_store and os.environ.get("CRESTGATE_URL", "").strip():
        _check_database_is_here(url, config)
    if "://" not in url:
        raise ReadOnlyError(f"keys are not stored in files such as {url}: name a rule database with --rules-store URL")
    repository = open_rules(url, _create_database if create else _refuse_missing)
    try:
        yield repository
    finally:
        repository.close()


def _check_database_is_here(url: str, config: str | None) -> None:
    """CRESTGATE_URL may name a service elsewhere: a key in a new database of this folder would be unknown there."""
    if not (config or os.environ.get("CRESTGATE_CONFIG") or url != default_rules_url() or has_default_rules()):
        raise ConfigError(
            "keys are created in the service's rule database: run this in the folder of the service, or with its "
            "--config; CRESTGATE_URL is not used"
        )
    print_error(f"CRESTGATE_URL is not used: these are the keys in {redact_url(url)}")


def _create_database(path: str, url: str) -> Repository:
    """Create the database and its folder, for this user alone."""
    folder = os.path.dirname(Options(url).path[1:])
    try:
        os.makedirs(folder or ".", mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create the folder of {path}: {error.strerror}") from error
    repository = open_repository(url)
    print_error(f"created SQLite file {path}", prefix="")
    return repository


def _refuse_missing(path: str, _url: str) -> Repository:
    raise ConfigError(
        f"SQLite file {path}: there is no such file, so there are no keys yet: name the database of the service with "
        "--rules-store URL, or create a key with `crestgate keys create NAME`"
    )


def _parse_expiry(text: str, now_us: int) -> int:
    """The expiry of a key: a duration from now, a date (its start, in UTC), or a timestamp."""
    lasts_us = duration_us(text)
    at_us = _date(text.strip()) if lasts_us is None else now_us + lasts_us
    if at_us is None or at_us > LAST_US:
        raise ConfigError(
            "--expires is a duration such as 90d or 12h, a date such as 2030-01-31, or a timestamp such as "
            f"2030-01-31T12:00:00Z, not {text!r}"
        )
    if at_us <= now_us:
        raise ConfigError(f"--expires {text} is in the past")
    return at_us


def _date(text: str) -> int | None:
    fields = Fields({"at": text}, "", Problems(), ("at",))
    at_us = read_timestamp(fields, "at")
    if at_us is not None:
        return at_us
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(day.timestamp()) * 1_000_000


def _data(key: ApiKey) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "name": key.name,
        "scope": key.scope,
        "created_at": format_timestamp(key.created_us),
        "expires_at": format_timestamp(key.expires_us),
    }


def _row(key: ApiKey, now_us: int) -> list[str | Cell]:
    expires = "-" if key.expires_us is None else format_timestamp(key.expires_us) or "-"
    is_expired = key.expires_us is not None and key.expires_us <= now_us
    return [
        key.key_id,
        key.name,
        key.scope,
        format_timestamp(key.created_us) or "-",
        Cell(f"{expires} (expired)", "red") if is_expired else expires,
    ]
