"""`crestgate keys`: create, list, rotate and revoke the API keys of a service: in its rule database, or by its API.

With the database no service needs to be running, so the first key is created this way, too. Running ones see a change
within a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol

import typer

from crestgate.cli.durations import duration_us
from crestgate.cli.groups import command_group
from crestgate.cli.locations import ConfigOption, JsonOption, TokenOption, UrlOption, actor, key_store, open_rules
from crestgate.cli.output import Cell, Column, escape_control, print_error, print_json, print_line, print_table
from crestgate.cli.remote import remote_service
from crestgate.cli.remote_keys import ServiceKeys
from crestgate.errors import ConfigError, ReadOnlyError, StoreError
from crestgate.loader.fields import Fields, Problems
from crestgate.rules.port import Repository
from crestgate.rules.storage.factory import open_repository
from crestgate.rules.timestamps import read_timestamp
from crestgate.runtime.url_options import Options
from crestgate.service.auth.keys import SCOPES, Scope, create_key, key_id_of, list_keys, revoke_key, rotate_key

__all__ = ["keys_app"]

COLUMNS = (
    *(Column("id"), Column("name", wraps=True), Column("scope")),
    *(Column("created", drop_order=1), Column("expires", drop_order=2)),
)
LAST_US = 253_402_300_799_000_000
"""The last second of the year 9999, the latest timestamp that can be formatted."""

DATE = "a duration such as 90d or 12h, a date such as 2030-01-31, or a timestamp such as 2030-01-31T12:00:00Z"

keys_app = command_group("Create, list, rotate and revoke the keys of a service.")

KeyStoreOption = Annotated[
    str | None,
    typer.Option(
        "--rules-store",
        metavar="URL",
        help="Its rule database [CRESTGATE_RULES_STORE, else settings, else ./.crestgate/rules.db].",
    ),
]


IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Its id, as `keys list` shows it.")]


class Keys(Protocol):
    """The keys of a database, or of a service: each as data, without its digest."""

    def create(self, name: str, scope: Scope, expires_us: int | None) -> dict[str, Any]: ...

    def list(self) -> list[dict[str, Any]]: ...

    def revoke(self, key_id: str) -> None: ...

    def rotate(self, key_id: str, grace_us: int, expires_us: int | None) -> dict[str, Any]: ...


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
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Create a key, and print its token once, on stdout.

    \b
    crestgate keys create ci --scope write --expires 90d
    crestgate keys create grafana --scope read --url http://127.0.0.1:8080
    """
    known_scope = next((one for one in SCOPES if one == scope.lower()), None)
    if known_scope is None:
        raise ConfigError(f"--scope is one of {', '.join(SCOPES)}, not {scope!r}")
    expires_us = None if expires is None else _parse_expiry(expires, time.time_ns() // 1000)
    with _keys(rules_store, config, url, token, create=True) as keys:
        data = keys.create(name, known_scope, expires_us)
    if as_json:
        print_json(data)
        return
    ends = "" if data["expires_at"] is None else f" until {data['expires_at']}"
    print_error(
        f"key {data['key_id']} for {data['name']!r}, scope {data['scope']}{ends}; its token is shown this once:",
        prefix="",
    )
    print_line(escape_control(str(data["token"])))


@keys_app.command("list")
def list_all(
    as_json: JsonOption = False,
    rules_store: KeyStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """List all keys, without their tokens: only digests are stored.

    \b
    crestgate keys list
    crestgate keys list --url http://127.0.0.1:8080 --json
    """
    with _keys(rules_store, config, url, token) as keys:
        found = keys.list()
    if as_json:
        print_json(found)
    elif found:
        print_table(COLUMNS, [_row(key, datetime.now(UTC)) for key in found])
    else:
        print_line("no keys")


@keys_app.command()
def revoke(
    key_id: IdArgument,
    as_json: JsonOption = False,
    rules_store: KeyStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Revoke a key, within a second in every service that uses this database.

    \b
    crestgate keys revoke 3f9c02d17ab4
    """
    key_id = key_id_of(key_id)
    with _keys(rules_store, config, url, token) as keys:
        keys.revoke(key_id)
    if as_json:
        print_json({"key_id": key_id, "revoked": True})
    else:
        print_line(Cell("revoked", "red"), f"  key {escape_control(key_id)}")


@keys_app.command()
def rotate(
    key_id: IdArgument,
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="How long the old token still works: 10m, 1h, 0s.")
    ] = "1h",
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="WHEN", help="Of the new key [as the old one].")
    ] = None,
    as_json: JsonOption = False,
    rules_store: KeyStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Replace a key by one with the same name and scope, and let the old one expire. Prints the new token once.

    \b
    crestgate keys rotate 3f9c02d17ab4 --grace 1h
    crestgate keys rotate 3f9c02d17ab4 --grace 0s --expires 90d
    """
    grace_us = duration_us(grace)
    if grace_us is None:
        raise ConfigError(f"--grace is a duration such as 10m, 1h or 0s, not {grace!r}")
    expires_us = None if expires is None else _parse_expiry(expires, time.time_ns() // 1000)
    with _keys(rules_store, config, url, token) as keys:
        data = keys.rotate(key_id_of(key_id), grace_us, expires_us)
    if as_json:
        print_json(data)
        return
    old = data["replaces"]
    works = f"works until {old['expires_at']}" if grace_us else "no longer works"
    print_error(
        f"key {data['key_id']} replaces {old['key_id']} ({old['name']!r}, scope {old['scope']}), which {works}; the "
        "new token is shown this once:",
        prefix="",
    )
    print_line(escape_control(str(data["token"])))


class DatabaseKeys:
    """The keys in a rule database."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def create(self, name: str, scope: Scope, expires_us: int | None) -> dict[str, Any]:
        key, token = create_key(self._repository, actor(), name, scope, expires_us)
        return {**key.to_data(), "token": token}

    def list(self) -> list[dict[str, Any]]:
        return [key.to_data() for key in list_keys(self._repository)]

    def revoke(self, key_id: str) -> None:
        revoke_key(self._repository, actor(), key_id)

    def rotate(self, key_id: str, grace_us: int, expires_us: int | None) -> dict[str, Any]:
        now_us = time.time_ns() // 1000
        key, old, token = rotate_key(
            self._repository, actor(), key_id, now_us=now_us, grace_us=grace_us, expires_us=expires_us
        )
        return {**key.to_data(), "token": token, "replaces": old.to_data()}


@contextmanager
def _keys(
    rules_store: str | None, config: str | None, service_url: str | None, token: str | None, *, create: bool = False
) -> Iterator[Keys]:
    """The keys of a service, or of a database."""
    service = remote_service(service_url, token, rules_store=rules_store, config=config)
    if service is not None:
        yield ServiceKeys(service)
        return
    url = key_store(rules_store, config)
    if "://" not in url:
        raise ReadOnlyError(f"keys are not stored in files such as {url}: name a rule database with --rules-store URL")
    repository = open_rules(url, _create_database if create else _refuse_missing)
    try:
        yield DatabaseKeys(repository)
    finally:
        repository.close()


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
        raise ConfigError(f"--expires is {DATE}, not {text!r}")
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


def _row(key: Mapping[str, Any], now: datetime) -> list[str | Cell]:
    expires = key["expires_at"]
    is_expired = expires is not None and datetime.fromisoformat(expires) <= now
    return [
        key["key_id"],
        key["name"],
        key["scope"],
        key["created_at"],
        Cell(f"{expires} (expired)", "red") if is_expired else expires or "-",
    ]
