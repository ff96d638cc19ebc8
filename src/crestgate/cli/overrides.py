"""`crestgate override`: another limit for one user for some time, and its undo."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from crestgate.cli.completion import complete_rules
from crestgate.cli.durations import parse_duration
from crestgate.cli.groups import command_group
from crestgate.cli.locations import (
    ConfigOption,
    JsonOption,
    RulesStoreOption,
    TokenOption,
    UrlOption,
    actor,
    load_settings_for,
    open_rules_for,
)
from crestgate.cli.output import Cell, Column, print_json, print_line, print_table
from crestgate.cli.remote import remote_service
from crestgate.cli.remote_rules import ServiceRules
from crestgate.errors import NotFoundError
from crestgate.rules.diff import all_records
from crestgate.rules.editor import Editor
from crestgate.rules.overrides import OVERRIDE_PREFIX, overrides_in
from crestgate.rules.port import Lookup, Repository
from crestgate.rules.records import rule_of
from crestgate.rules.rule import Rule

__all__ = ["override_app"]

COLUMNS = (Column("user", wraps=True), Column("limit"), Column("per"), Column("until"), Column("id", wraps=True))

override_app = command_group("Override a limit for one user, for some time.", default="set")

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="The user, as checks name it.")]
RuleArgument = Annotated[
    str, typer.Argument(metavar="RULE", help="Its rule_id, as `rules list` shows it.", autocompletion=complete_rules)
]


@override_app.command("set")
def set_override(
    user: UserArgument,
    rule: RuleArgument,
    limit: Annotated[int, typer.Argument(metavar="LIMIT", min=0, help="Requests in the rule's window.")],
    lasts: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long: 30m, 2h, 7d.")],
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Override the limit of a rule for one user.

    What was used is kept; a second override replaces the first. `set` may be left out.

    \b
    crestgate override acme orders-per-user 500 --for 2h
    """
    seconds = parse_duration(lasts, "--for")
    service = remote_service(url, token, rules_store=rules_store, config=config)
    if service is not None:
        body = {"rule_id": rule, "limit": limit, "duration_seconds": seconds}
        data = service.post(_path(user), body)
    else:
        with _editor(rules_store, config) as (editor, repository):
            base = _base(repository, rules_store, config, rule)
            if base is None:
                raise NotFoundError(f"there is no rule {rule!r}: `crestgate rules list` shows all")
            data = editor.override(user, base, limit, seconds).to_data()
    if as_json:
        print_json(data)
        return
    window = _window(data)
    print_line(Cell("overridden", "green"), f"  {user}: {limit} per {window} until {data['expires_at']}")
    print_line(f"  rule {data['rule_id']}; undo with `crestgate override undo {user} {rule}`")


@override_app.command()
def undo(
    user: UserArgument,
    rule: RuleArgument,
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """End an override now.

    RULE is the rule that was overridden, or the override itself.

    \b
    crestgate override undo acme orders-per-user
    """
    service = remote_service(url, token, rules_store=rules_store, config=config)
    if service is not None:
        service.delete(f"{_path(user)}?{urlencode({'rule_id': rule}, quote_via=quote)}")
    else:
        with _editor(rules_store, config) as (editor, repository):
            editor.undo_override(user, rule, _base(repository, rules_store, config, rule))
    if as_json:
        print_json({"user_id": user, "rule_id": rule, "undone": True})
    else:
        print_line(Cell("undone", "green"), f"  override of {rule} for {user}")


@override_app.command("list")
def list_overrides(
    user: Annotated[str | None, typer.Argument(metavar="[USER]", help="Only of this user.")] = None,
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the overrides in force.

    \b
    crestgate override list
    crestgate override list acme --json
    """
    service = remote_service(url, token, rules_store=rules_store, config=config)
    if service is not None:
        found = _list(ServiceRules(service), user)
    else:
        with open_rules_for(rules_store, config) as repository:
            found = _list(repository, user)
    if as_json:
        print_json([rule.to_data() for rule in found])
    elif found:
        print_table(COLUMNS, [_row(rule.to_data()) for rule in found])
    else:
        print_line("no overrides")


def _list(rules: Lookup, user: str | None) -> Sequence[Rule]:
    stored = map(rule_of, all_records(rules, "rule", OVERRIDE_PREFIX))
    return overrides_in(stored, time.time_ns() // 1000, user)


def _window(rule: dict[str, Any]) -> str:
    if "calendar" in rule:
        return f"calendar {rule['calendar']} in {rule['timezone']}"
    return f"{rule['window_seconds']:g} s"


def _row(rule: dict[str, Any]) -> list[str | Cell]:
    return [rule["identifier"], str(rule["limit"]), _window(rule), rule["expires_at"], rule["rule_id"]]


def _base(repository: Repository, rules_store: str | None, config: str | None, rule_id: str) -> Rule | None:
    """The rule to override, of the database or of the files of the settings."""
    record = repository.get("rule", rule_id)
    if record is None and not rules_store:
        record = load_settings_for(config).rule_files().get("rule", rule_id)
    return None if record is None else rule_of(record)


@contextmanager
def _editor(rules_store: str | None, config: str | None) -> Iterator[tuple[Editor, Repository]]:
    with open_rules_for(rules_store, config) as repository:
        yield Editor(repository, actor()), repository


def _path(user: str) -> str:
    return f"/api/v1/users/{quote(user, safe='')}/override"
