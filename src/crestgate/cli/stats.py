"""`crestgate stats`: the usage history, by time, rule and subject."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Annotated, Any

import typer

from crestgate.cli.durations import parse_duration
from crestgate.cli.local_service import find_local_service
from crestgate.cli.locations import (
    ConfigOption,
    JsonOption,
    RulesStoreOption,
    TokenOption,
    UrlOption,
    check_exists,
    key_store,
)
from crestgate.cli.output import Cell, Column, print_error, print_json, print_line, print_table
from crestgate.cli.remote import ServiceClient, remote_service
from crestgate.cli.status import policy_note
from crestgate.errors import ConfigError, CrestgateError
from crestgate.history.factory import open_history
from crestgate.service.observability.usage_report import usage_report

__all__ = ["local_stats", "stats"]

STEPS = ("minute", "hour")
DEFAULT_SPANS = {"minute": "1h", "hour": "1d"}
MAX_TOP = 100
NUMBERS = (Column("allowed"), Column("denied"))

SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="DURATION", help="How far back: 30m, 24h, 7d [1h; with --step hour: 1d]."),
]


def stats(
    since: SinceOption = None,
    step: Annotated[str, typer.Option("--step", metavar="STEP", help="minute or hour.")] = "minute",
    rule: Annotated[str | None, typer.Option("--rule", metavar="ID", help="Only this rule.")] = None,
    top: Annotated[int, typer.Option("--top", min=0, max=MAX_TOP, metavar="N", help="Number of subjects.")] = 10,
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show allowed and denied requests over time.

    Also by rule, of the busiest subjects, and of those denied most; from the history in the rule database, which needs
    no running service, or from a service (--url). The last seconds may still be missing.

    \b
    crestgate stats --since 30m
    crestgate stats --since 7d --step hour --rule orders-per-user --json
    """
    if step not in STEPS:
        raise ConfigError(f"--step is one of {', '.join(STEPS)}, not {step!r}")
    seconds = parse_duration(since or DEFAULT_SPANS[step], "--since")
    service = remote_service(url, token, rules_store=rules_store, config=config)
    if service is not None:
        data = _remote(service, seconds, step, rule, top)
    else:
        data = local_stats(key_store(rules_store, config), seconds, step, rule, top)
        local = find_local_service() if rules_store is None else None
        if local is not None:
            data |= _policy(local.status())
    if as_json:
        print_json(data)
    else:
        _print(data)


def local_stats(url: str, seconds: float, step: Any, rule: str | None, top: int) -> dict[str, Any]:
    """The history of a rule database."""
    check_exists(url)
    until_us = time.time_ns() // 1000
    since_us = max(until_us - round(seconds * 1_000_000), 0)
    with closing(open_history(url)) as history:
        try:
            return usage_report(history, since_us, until_us, step, rule, top)
        except CrestgateError:
            raise
        except ValueError as error:  # more than one report may have
            raise ConfigError(f"--since: {error}") from None


def _remote(service: ServiceClient, seconds: float, step: str, rule: str | None, top: int) -> dict[str, Any]:
    since = f"{time.time() - seconds:.3f}"
    query: dict[str, str | int] = {"since": since, "step": step, "top": top, **({} if rule is None else {"rule": rule})}
    data = service.get("/api/v1/stats", **query)
    return data | _policy(service.get("/api/v1/status"))


def _policy(status: dict[str, Any]) -> dict[str, Any]:
    return {name: status.get(name) for name in ("policy_decides_now", "policy_decisions_last_minute")}


def _print(data: dict[str, Any]) -> None:
    totals = data["totals"]
    shadowed = f", {totals['shadowed']} would be denied by shadow rules" if totals["shadowed"] else ""
    print_line(f"{data['since']} to {data['until']}: {totals['allowed']} allowed, {totals['denied']} denied{shadowed}")
    note = policy_note(data)
    if note is not None:
        print_error(note)
    if not data["series"]:
        print_line("no requests in this time")
        return
    rows = [[one["at"], str(one["allowed"]), _denied(one["denied"])] for one in data["series"]]
    print_table((Column("from"), *NUMBERS), rows)
    print_table(
        (Column("rule", wraps=True), *NUMBERS, Column("shadow", drop_order=1)),
        [[one["rule"], str(one["allowed"]), _denied(one["denied"]), str(one["shadowed"])] for one in data["rules"]],
    )
    for title, name in (("subject", "top"), ("most denied", "top_denied")):
        if data[name]:
            subjects = [[one["subject"], str(one["allowed"]), _denied(one["denied"])] for one in data[name]]
            print_table((Column(title, wraps=True), *NUMBERS), subjects)


def _denied(number: int) -> str | Cell:
    return Cell(str(number), "red") if number else "0"
