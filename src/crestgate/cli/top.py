"""`crestgate top`: what the service decides now, per second, and who is busiest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from crestgate.cli.local_service import LocalService, find_local_service, no_local_service
from crestgate.cli.locations import ConfigOption, JsonOption, TokenOption, UrlOption, key_store
from crestgate.cli.output import Column, escape_control, print_error, print_json, print_line, print_table
from crestgate.cli.remote import remote_service
from crestgate.cli.stats import local_stats
from crestgate.cli.status import policy_note
from crestgate.errors import CrestgateError

__all__ = ["top"]

NAMES = ("allowed", "denied", "fail_open")
SUBJECT_SECONDS = 300
"""Subjects are those of the last minutes: the history is written every ten seconds."""
SUBJECT_EVERY = 10.0


class Source(NamedTuple):
    """Where the numbers come from."""

    title: str
    status: Callable[[], dict[str, Any]]
    stats: Callable[[], dict[str, Any]]


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.5, max=60, metavar="SECONDS", help="Between two updates.")
    ] = 2.0,
    number: Annotated[int, typer.Option("--number", "-n", min=1, max=50, metavar="N", help="Subjects to show.")] = 10,
    once: Annotated[bool, typer.Option("--once", help="Print one measurement, and end.")] = False,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch decisions per second, and the busiest subjects.

    Allowed, denied and fail-open, top subjects and top denied; of the service that runs in this folder, or of another
    (--url). Ctrl-C ends it. --json prints one measurement, and so does a pipe.

    \b
    crestgate top
    crestgate top --once --url http://127.0.0.1:8080
    """
    source = _source(config, url, token, number)
    if once or as_json or not Console().is_terminal:  # in a pipe nothing can be redrawn
        data = _measure(source, interval)
        if as_json:
            print_json(data)
        else:
            _print(data)
        return
    try:
        _watch(source, interval)
    except KeyboardInterrupt:
        return


def _source(config: str | None, url: str | None, token: str | None, number: int) -> Source:
    client = remote_service(url, token, config=config)
    if client is not None:
        service = client

        def stats() -> dict[str, Any]:
            return service.get("/api/v1/stats", since=f"{time.time() - SUBJECT_SECONDS:.3f}", top=number)

        return Source(service.title, lambda: service.get("/api/v1/status"), stats)
    rules = key_store(None, config)
    return Source(
        _local_service().title,
        lambda: _local_service().status(),  # found anew: a restart publishes elsewhere
        lambda: local_stats(rules, SUBJECT_SECONDS, "minute", None, number),
    )


def _local_service() -> LocalService:
    service = find_local_service()
    if service is None:
        raise no_local_service()
    return service


def _measure(source: Source, interval: float) -> dict[str, Any]:
    before, started = source.status(), time.monotonic()
    time.sleep(interval)
    return _data(source, before, source.status(), time.monotonic() - started, source.stats())


def _data(
    source: Source,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    seconds: float,
    stats: Mapping[str, Any],
) -> dict[str, Any]:
    """The rates between two moments. Counters that were reset by a restart count as 0."""
    deltas = {name: max(after["decisions"][name] - before["decisions"][name], 0) for name in NAMES}
    return {
        "service": source.title,
        "per_second": {name: round(delta / seconds, 1) for name, delta in deltas.items()},
        "policy_decides_now": after["policy_decides_now"],
        "policy_decisions_last_minute": after["policy_decisions_last_minute"],
        "workers": sum(not one["silent"] for one in after["workers"]),
        "workers_expected": after["workers_expected"],
        "top": stats["top"],
        "top_denied": stats["top_denied"],
    }


def _watch(source: Source, interval: float) -> None:
    """Until Ctrl-C. An error is shown above the last numbers, until the service answers again."""
    stats, stats_at = source.stats(), time.monotonic()
    before, started = source.status(), time.monotonic()
    console = Console(highlight=False, emoji=False, markup=False)
    shown: dict[str, Any] | None = None
    with Live(
        Text(f"{source.title}: measuring …"), console=console, auto_refresh=False, screen=console.is_terminal
    ) as live:
        while True:
            time.sleep(interval)
            try:
                after, now = source.status(), time.monotonic()
                if now - stats_at >= SUBJECT_EVERY:
                    stats, stats_at = source.stats(), now
            except CrestgateError as error:
                live.update(_error_screen(source, error, shown), refresh=True)
                continue
            shown = _data(source, before, after, now - started, stats)
            live.update(_screen(shown), refresh=True)
            before, started = after, now


def _error_screen(source: Source, error: CrestgateError, shown: Mapping[str, Any] | None) -> Group:
    headline = Text(escape_control(f"{source.title}  no numbers since the last update: {error}"), "bold red")
    return Group(headline, *([] if shown is None else _tables(shown)))


def _headline(data: Mapping[str, Any]) -> str:
    rates = data["per_second"]
    return (
        f"{data['service']}  {rates['allowed']:g} allowed/s  {rates['denied']:g} denied/s  "
        f"{rates['fail_open']:g} fail-open/s  {data['workers']} of {data['workers_expected']} workers"
    )


def _screen(data: Mapping[str, Any]) -> Group:
    note = policy_note(data)
    parts: list[Any] = [Text(_headline(data), "bold")]
    if note is not None:
        parts.append(Text(note, "bold red"))
    return Group(*parts, *_tables(data))


def _tables(data: Mapping[str, Any]) -> list[Table]:
    tables = []
    for title, name in (("busiest subjects", "top"), ("most denied", "top_denied")):
        table = Table(title=f"{title}, last {SUBJECT_SECONDS // 60} minutes", title_justify="left", expand=False)
        for column in ("subject", "allowed", "denied"):
            table.add_column(column)
        for one in data[name]:
            table.add_row(Text(escape_control(one["subject"])), str(one["allowed"]), str(one["denied"]))
        tables.append(table)
    return tables


def _print(data: Mapping[str, Any]) -> None:
    print_line(_headline(data))
    note = policy_note(data)
    if note is not None:
        print_error(note)
    for title, name in (("subject", "top"), ("most denied", "top_denied")):
        if data[name]:
            rows = [[one["subject"], str(one["allowed"]), str(one["denied"])] for one in data[name]]
            print_table((Column(title, wraps=True), Column("allowed"), Column("denied")), rows)
