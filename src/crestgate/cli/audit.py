"""`crestgate audit`: who changed what, and when."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from crestgate.cli.durations import duration_us
from crestgate.cli.locations import (
    ConfigOption,
    JsonOption,
    RulesStoreOption,
    TokenOption,
    UrlOption,
    open_rules_for,
)
from crestgate.cli.output import Cell, Column, print_json, print_line, print_table
from crestgate.cli.remote import remote_service
from crestgate.errors import ConfigError
from crestgate.loader.fields import Fields, Problems
from crestgate.rules.audit_log import read_audit
from crestgate.rules.port import AuditQuery
from crestgate.rules.timestamps import format_timestamp, read_timestamp

__all__ = ["audit"]

MAX_ENTRIES = 1000
COLUMNS = (
    *(Column("at"), Column("actor", wraps=True), Column("action"), Column("subject", wraps=True)),
    *(Column("change", wraps=True, drop_order=1), Column("from", drop_order=2)),
)
_STYLES = {"create": "green", "delete": "red", "expire": "dim"}


def audit(
    actor: Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Exactly this actor: key:ops.")] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="NAME", help="Exactly this subject: rule:orders, tier:alice.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="WHEN", help="2h, 7d, or a time such as 2030-01-31T12:00:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Likewise.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=MAX_ENTRIES, metavar="N", help="The newest N entries.")
    ] = 50,
    requests: Annotated[
        bool, typer.Option("--requests", help="Also the entries before a reset is tried, if its outcome is known.")
    ] = False,
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who changed what, the newest first.

    \b
    crestgate audit --since 2h
    crestgate audit --actor key:ops --subject rule:orders-per-user --json
    """
    now_us = time.time_ns() // 1000
    query = AuditQuery(actor, subject, _when(since, "--since", now_us), _when(until, "--until", now_us), None, limit)
    service = remote_service(url, token, rules_store=rules_store, config=config)
    if service is None:
        with open_rules_for(rules_store, config) as repository:
            entries = [entry.to_data() for entry in read_audit(repository, query, requests=requests)[0]]
    else:
        given = {"actor": actor, "subject": subject}
        given |= {"since": format_timestamp(query.since_us), "until": format_timestamp(query.until_us)}
        given |= {"requests": "true" if requests else None}
        found = service.get(
            "/api/v1/audit", limit=limit, **{name: value for name, value in given.items() if value is not None}
        ).get("entries")
        if not isinstance(found, list):
            raise service.unexpected("its response has no audit entries")
        entries = found
    if as_json:
        print_json(entries)
    elif entries:
        print_table(COLUMNS, [_row(entry) for entry in entries])
    else:
        print_line("no entries")


def _when(text: str | None, option: str, now_us: int) -> int | None:
    if text is None:
        return None
    ago_us = duration_us(text)
    if ago_us is not None:
        return max(now_us - ago_us, 0)
    at_us = read_timestamp(Fields({"at": text}, "", Problems(), ("at",)), "at")
    if at_us is None:
        raise ConfigError(
            f"{option} is a duration such as 2h or 7d, or a time such as 2030-01-31T12:00:00Z, not {text!r}"
        )
    return at_us


def _row(entry: dict[str, Any]) -> list[str | Cell]:
    action = str(entry["action"])
    return [
        *(str(entry["at"]), str(entry["actor"])),
        Cell(action, "bold red" if action.endswith(" failed") else _STYLES.get(action, "")),
        *(str(entry["subject"]), _change(entry.get("before"), entry.get("after")), str(entry["address"])),
    ]


def _change(before: Any, after: Any) -> str:
    """The fields that differ."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return "-"
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {before.get(name)} -> {after.get(name)}" for name in names) or "-"
