"""`headgate keys`: make, list and revoke the keys of a service, in its rule database.

No service needs to run, or be asked: the first key is made so, too. Running ones know of a change a moment later.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from headgate.cli.groups import command_group
from headgate.cli.places import ConfigOption, JsonOption, actor, key_store, open_rules
from headgate.cli.showing import Cell, Column, complain, say, say_json, say_table, shown
from headgate.config.usual import has_usual_rules, usual_rules_store
from headgate.core.limit import Limit
from headgate.errors import ConfigError, NotFound, ReadOnly, StoreError
from headgate.reading.fields import Fields, Problems
from headgate.rules.moments import moment_text, read_moment
from headgate.rules.repositories.opening import open_repository
from headgate.rules.repositories.port import Repository
from headgate.service.auth.keys import SCOPES, TOKEN, ApiKey, create_key, list_keys, revoke_key
from headgate.stores.options import Options, masked

__all__ = ["keys_app"]

COLUMNS = (
    *(Column("id"), Column("name", folds=True), Column("scope")),
    *(Column("created", spare=1), Column("expires", spare=2)),
)
LAST_US = 253_402_300_799_000_000
"""The last moment that can be written down: the last second of the year 9999."""
_SPAN = re.compile(r"(\d{1,9})\s*([a-zA-Z]+)")

keys_app = command_group("Make, list and revoke the keys of a service.")

KeyStoreOption = Annotated[
    str | None,
    typer.Option(
        "--rules-store",
        metavar="URL",
        help="Its rule database [HEADGATE_RULES_STORE, else settings, else ./.headgate/rules.db].",
    ),
]


@keys_app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for, for people: ci, grafana, alice.")],
    scope: Annotated[
        str, typer.Option("--scope", metavar="SCOPE", help="check; read: also look at rules; write: also change them.")
    ] = "check",
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="WHEN", help="90d, 12h, or a date such as 2030-01-31 [never].")
    ] = None,
    as_json: JsonOption = False,
    rules_store: KeyStoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Make a key, and print its token: once, on stdout, and nowhere else.

    \b
    headgate keys create ci --scope write --expires 90d
    """
    of_scope = next((one for one in SCOPES if one == scope.lower()), None)
    if of_scope is None:
        raise ConfigError(f"--scope is one of {', '.join(SCOPES)}, not {scope!r}")
    expires_us = None if expires is None else _moment(expires, time.time_ns() // 1000)
    with _opened(rules_store, config, make=True) as repository:
        key, token = create_key(repository, actor(), name, of_scope, expires_us)
    if as_json:
        say_json({**_data(key), "token": token})
        return
    ends = "" if key.expires_us is None else f" until {moment_text(key.expires_us)}"
    complain(f"key {key.key_id} for {key.name!r}, scope {key.scope}{ends}; its token is shown this once:", prefix="")
    say(token)


@keys_app.command("list")
def list_all(as_json: JsonOption = False, rules_store: KeyStoreOption = None, config: ConfigOption = None) -> None:
    """List all keys, without their tokens, which nobody has kept."""
    with _opened(rules_store, config) as repository:
        keys = list_keys(repository)
    if as_json:
        say_json([_data(key) for key in keys])
    elif keys:
        now_us = time.time_ns() // 1000
        say_table(COLUMNS, [_row(key, now_us) for key in keys])
    else:
        say("no keys")


@keys_app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Its id, as `keys list` shows it.")],
    rules_store: KeyStoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Revoke a key: it opens nothing any more, a moment later, in every service of this database."""
    token = TOKEN.fullmatch(key_id)
    if token is not None:  # of a token that went astray, only the id is looked at, and shown
        key_id = token[1]
    with _opened(rules_store, config) as repository:
        try:
            revoke_key(repository, actor(), key_id)
        except NotFound as error:
            named = [key.key_id for key in list_keys(repository) if key.name == key_id]
            if not named:
                raise
            ids = f"the id {named[0]}" if len(named) == 1 else f"the ids {', '.join(named)}"
            raise NotFound(f"{error}: the key that is called so has {ids}") from None
    say(Cell("revoked", "red"), f"  key {shown(key_id)}")


@contextmanager
def _opened(rules_store: str | None, config: str | None, *, make: bool = False) -> Iterator[Repository]:
    url = key_store(rules_store, config)
    if not rules_store and os.environ.get("HEADGATE_URL", "").strip():
        _check_database_is_here(url, config)
    if "://" not in url:
        raise ReadOnly(f"keys are not kept in files such as {url}: name a rule database with --rules-store URL")
    repository = open_rules(url, _made if make else _refused)
    try:
        yield repository
    finally:
        repository.close()


def _check_database_is_here(url: str, config: str | None) -> None:
    """HEADGATE_URL names a service elsewhere, perhaps: a key in a new database of this folder would open nothing
    there."""
    if not (config or os.environ.get("HEADGATE_CONFIG") or url != usual_rules_store() or has_usual_rules()):
        raise ConfigError(
            "keys are made where the service's rule database is: run this in the folder of the service, or with its "
            "--config; HEADGATE_URL is not used"
        )
    complain(f"HEADGATE_URL is not used: these are the keys in {masked(url)}")


def _made(path: str, url: str) -> Repository:
    """The database and its folder, which is for this user alone, as is the one that a service makes."""
    folder = os.path.dirname(Options(url).path[1:])
    try:
        os.makedirs(folder or ".", mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder of {path}: {error.strerror}") from error
    repository = open_repository(url)
    complain(f"made SQLite file {path}", prefix="")
    return repository


def _refused(path: str, _url: str) -> Repository:
    raise ConfigError(
        f"SQLite file {path}: there is no such file, so there are no keys yet: name the database of the service with "
        "--rules-store URL, or make a key with `headgate keys create NAME`"
    )


def _moment(text: str, now_us: int) -> int:
    """When a key is to expire: a span from now on, a date (its first moment, UTC), or a moment."""
    span = _SPAN.fullmatch(text.strip())
    moment_us = None
    if span is not None:
        try:
            moment_us = now_us + int(span[1]) * Limit.parse(f"1/{span[2]}").period_us
        except ConfigError:  # no unit of time
            moment_us = None
    else:
        moment_us = _date(text.strip())
    if moment_us is None or moment_us > LAST_US:
        raise ConfigError(
            "--expires is a span such as 90d or 12h, a date such as 2030-01-31, or a moment such as "
            f"2030-01-31T12:00:00Z, not {text!r}"
        )
    if moment_us <= now_us:
        raise ConfigError(f"--expires {text} is over already: the key would open nothing")
    return moment_us


def _date(text: str) -> int | None:
    fields = Fields({"at": text}, "", Problems(), ("at",))
    moment_us = read_moment(fields, "at")
    if moment_us is not None:
        return moment_us
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
        "created_at": moment_text(key.created_us),
        "expires_at": moment_text(key.expires_us),
    }


def _row(key: ApiKey, now_us: int) -> list[str | Cell]:
    expires = "-" if key.expires_us is None else moment_text(key.expires_us) or "-"
    over = key.expires_us is not None and key.expires_us <= now_us
    return [
        key.key_id,
        key.name,
        key.scope,
        moment_text(key.created_us) or "-",
        Cell(f"{expires} (expired)", "red") if over else expires,
    ]
