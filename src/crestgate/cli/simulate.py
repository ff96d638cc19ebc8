"""`crestgate simulate`: whom would these rules deny? Replays an access log on virtual time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TimeRemainingColumn

from crestgate.cli.checks import open_catalog
from crestgate.cli.locations import (
    ConfigOption,
    JsonOption,
    TokenOption,
    UrlOption,
    check_exists,
    default_rules_store,
    load_settings_for,
)
from crestgate.cli.output import Cell, Column, print_error, print_json, print_line, print_table
from crestgate.cli.remote import ServiceClient, remote_service
from crestgate.cli.remote_rules import ServiceRules
from crestgate.errors import ConfigError
from crestgate.rules.diff import all_records
from crestgate.rules.records import plan_of
from crestgate.rules.rule import ANY
from crestgate.rules.ruleset import RuleSet
from crestgate.runtime.url_options import redact_url
from crestgate.simulate.formats import FORMATS
from crestgate.simulate.html_report import render_html, summary_lines
from crestgate.simulate.lines import LogLines
from crestgate.simulate.logged_request import LoggedRequest
from crestgate.simulate.picture import draw_svg
from crestgate.simulate.replay import DEFAULT_MAX_KEYS
from crestgate.simulate.report import DEFAULT_TOP
from crestgate.simulate.rule_source import load_rules
from crestgate.simulate.session import simulate_log
from crestgate.simulate.suggest import BASES, RuleTraffic, parse_share, suggest_limit

__all__ = ["simulate"]

RULE_COLUMNS = (Column("rule", wraps=True), Column("limit", wraps=True, drop_order=2))
SUBJECT_COLUMNS = (Column("subject", wraps=True), Column("rule", wraps=True, drop_order=2))
CURRENT = "current"
"""In place of a file: the rules in force. A file of this name is ./current."""
COUNT_COLUMNS = (Column("requests"), Column("denied"), Column("share"))


def simulate(
    log: Annotated[str, typer.Option("--log", metavar="FILE", help="Access log, plain or gzip; `-` is stdin.")],
    rules: Annotated[
        str,
        typer.Option(
            "--rules",
            metavar="RULES",
            help="Rules to try: a rule file, a folder, a configuration, the URL of a rule database, or `current`.",
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="RULES",
            help="Rules to compare with, named the same way; `current`: those in force, here or at --url.",
        ),
    ] = None,
    log_format: Annotated[
        str, typer.Option("--format", metavar="NAME", help=f"Of the log: {', '.join(FORMATS)}.")
    ] = "auto",
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="NAME=PATH",
            help="Where JSON lines have a field, such as user=request.user_id; repeatable.",
        ),
    ] = None,
    suggest: Annotated[
        str | None, typer.Option("--suggest", metavar="RULE", help="Find the smallest limit of this rule.")
    ] = None,
    deny_at_most: Annotated[
        str, typer.Option("--deny-at-most", metavar="SHARE", help="With --suggest: how much it may deny.")
    ] = "1%",
    of: Annotated[
        str, typer.Option("--of", metavar="NAME", help=f"With --suggest: of {' or '.join(BASES)}.")
    ] = "requests",
    top: Annotated[int, typer.Option("--top", min=1, max=1000, help="Subjects in each list.")] = DEFAULT_TOP,
    max_keys: Annotated[
        int, typer.Option("--max-keys", min=1, max=100_000_000, help="Counters in memory at one time.")
    ] = DEFAULT_MAX_KEYS,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write the report as a page.")] = None,
    svg: Annotated[str | None, typer.Option("--svg", metavar="FILE", help="Write the picture.")] = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay an access log against rules, on virtual time.

    Nothing is counted in any store. `current` is the rules in force in this folder, or of a service (--url).

    \b
    crestgate simulate --log access.log.gz --rules new.yaml --against current
    crestgate simulate --log access.log --rules new.yaml --against current --url http://127.0.0.1:8080
    crestgate simulate --log access.log --rules new.yaml --against old.yaml --html report.html
    """
    share = parse_share(deny_at_most)
    if of not in BASES:
        raise ConfigError(f"--of is one of {', '.join(BASES)}, not {of!r}")
    if CURRENT not in (rules, against) and (url or token or config):
        option = "--url" if url else "--token" if token else "--config"
        raise ConfigError(f"{option} says whose rules are current: write --against {CURRENT}, or leave it out")
    proposed = _load(rules, config, url, token)
    current = None if against is None else _load(against, config, url, token)
    traffic = None if suggest is None else RuleTraffic(proposed, suggest)
    try:
        with _progress(log) as on_read:

            def on_replay(requests: Sequence[LoggedRequest]) -> None:
                if traffic is not None:
                    traffic.add(requests)

            report = simulate_log(
                log,
                proposed,
                current,
                log_format=log_format,
                fields=field or (),
                max_keys=max_keys,
                top=top,
                on_read=on_read,
                on_replay=on_replay,
            )
        if traffic is not None:
            report["suggestion"] = suggest_limit(traffic, share, of).to_data()
    finally:
        if traffic is not None:
            traffic.close()
    if html is not None:
        _write(html, render_html(report, f"{redact_url(rules) if '://' in rules else rules} on {log}"))
    if svg is not None:
        _write(svg, draw_svg(report))
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def _load(source: str, config: str | None, url: str | None, token: str | None) -> RuleSet:
    if source != CURRENT:
        if "://" in source:
            check_exists(source)
        return load_rules(source)
    service = remote_service(url, token, config=config)
    if service is not None:
        return _rules_of_service(service)
    settings = load_settings_for(config)
    database = default_rules_store(settings)
    if database is None and not settings.files.paths and not settings.files.records:
        raise ConfigError(
            f"which rules are {CURRENT}? There is no ./.crestgate/rules.db here: name settings with --config FILE, or "
            "a running service with --url URL"
        )
    if database is not None:
        check_exists(database)
    with open_catalog(settings, database) as catalog:
        return catalog.current


def _rules_of_service(service: ServiceClient) -> RuleSet:
    """The rules that a service has in force. Its API lists neither the tiers of users nor the default limits."""
    listed = ServiceRules(service)
    rules, unreadable = listed.readable_rules()
    if unreadable:
        print_error(f"{len(unreadable)} stored records of {service.title} cannot be read: `crestgate rules list`")
    if any(rule.tier != ANY for rule in rules):
        print_error("tiers of users are not known here: rules of a tier apply to lines of the log that name it")
    plans = {record.id: plan_of(record) for record in all_records(listed, "plan")}
    return RuleSet.empty().edited(rules, plans=plans)


@contextmanager
def _progress(log: str) -> Iterator[Any]:
    """A progress bar on a terminal, by the bytes that were read."""
    console = Console(stderr=True)
    if not console.is_terminal or log == "-":
        yield None
        return
    from crestgate.simulate.bad_lines import BadLines

    lines = LogLines(log, BadLines())
    size = lines.size
    lines.close()
    columns = (BarColumn(), TaskProgressColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=size)

        def on_read(position: int) -> None:
            progress.update(task, completed=position)

        yield on_read


def _print_report(report: dict[str, Any]) -> None:
    for line in summary_lines(report):
        print_line(line)
    against = report["against"]
    newly = () if against is None else ("newly_denied",)
    _print_rules("rules", report["rules"], newly)
    _print_subjects("subjects that are denied most", report["subjects"], newly)
    _print_rules("shadow rules, which deny nothing", report["shadow_rules"], ())
    _print_subjects("subjects that shadow rules would deny", report["shadow_subjects"], ())
    if against is not None:
        _print_rules("rules compared with", against["rules"], ("newly_allowed",))
        _print_subjects("subjects that they deny", against["subjects"], ("newly_allowed",))


def _print_rules(title: str, rows: Sequence[dict[str, Any]], newly: Sequence[str]) -> None:
    names = ("rule_id", "limit", "requests", "denied", "share_denied", "subjects", "subjects_denied")
    columns = (*RULE_COLUMNS, *COUNT_COLUMNS, Column("subjects", drop_order=1), Column("subjects denied"))
    _print_rows(title, rows, columns, names, newly)


def _print_subjects(title: str, rows: Sequence[dict[str, Any]], newly: Sequence[str]) -> None:
    columns = (*SUBJECT_COLUMNS, *COUNT_COLUMNS)
    _print_rows(title, rows, columns, ("subject", "rule_id", "requests", "denied", "share_denied"), newly)


def _print_rows(
    title: str, rows: Sequence[dict[str, Any]], columns: Sequence[Column], names: Sequence[str], newly: Sequence[str]
) -> None:
    if not rows:
        return
    print_line("")
    print_line(Cell(title, "bold"))
    print_table(
        [*columns, *(Column(name.replace("_", " ")) for name in newly)],
        [[_cell(name, row[name]) for name in (*names, *newly)] for row in rows],
    )


def _cell(name: str, value: Any) -> str:
    if name == "share_denied":
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path!r}: {error.strerror or error}") from None
    print(f"written: {path}", file=sys.stderr)  # noqa: T201 - not part of the report
