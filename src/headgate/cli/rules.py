"""`headgate rules`: look at the rules of a repository, or of a running service, and change them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Annotated, Any, Protocol

import typer

from headgate.cli.groups import command_group
from headgate.cli.places import (
    ConfigOption,
    JsonOption,
    RulesStoreOption,
    TokenOption,
    UrlOption,
    actor,
    refuse,
    repository_of,
)
from headgate.cli.remote import service_of
from headgate.cli.remote_rules import ServiceRules
from headgate.cli.showing import Cell, Column, say, say_json, say_table, say_yaml, shown
from headgate.config.usual import make_usual_folder, usual_rules_store
from headgate.errors import ConfigError, Invalid, NotFound
from headgate.rules.comparing import Difference, all_records, field_changes
from headgate.rules.editor import Editor
from headgate.rules.moments import moment_text
from headgate.rules.repositories.files import FileRepository
from headgate.rules.repositories.opening import open_repository
from headgate.rules.repositories.port import Lookup, Record, Repository
from headgate.rules.rule import DIMENSIONS, MODES, Rule, dimension_of
from headgate.rules.rule_files import read_rule_files
from headgate.rules.sections import OFF

__all__ = ["rules_app"]

DIFFERENT = 1
COLUMNS = (
    *(Column("id", folds=True), Column("dimension", spare=9), Column("identifier", folds=True, spare=6)),
    *(Column("pattern", folds=True, spare=7), Column("method", spare=5), Column("tier", spare=4), Column("limit")),
    *(Column("algorithm", spare=2), Column("mode", spare=8), Column("expires", spare=3), Column("version", spare=1)),
)

rules_app = command_group("Look at rules, and change them.")

FilesOption = Annotated[
    list[str], typer.Option("--file", "-f", metavar="FILE", help="Rules in YAML or JSON; a file or folder; repeatable.")
]


class Edits(Protocol):
    """What the commands ask for: of an Editor, or of a service."""

    def rules(self) -> Iterator[Rule]: ...

    def rule(self, rule_id: str) -> Rule: ...

    def difference(self, records: Iterable[Record]) -> Difference: ...

    def apply(self, difference: Difference, *, prune: bool = False) -> None: ...

    def delete_all(self, rule_ids: Iterable[str]) -> None: ...


class Kept(Lookup, Protocol):
    """Where it is asked for."""

    @property
    def title(self) -> str: ...


@rules_app.command("list")
def list_rules(
    dimension: Annotated[
        str | None, typer.Option("--dimension", metavar="NAME", help=f"Only of {', '.join(DIMENSIONS)}.")
    ] = None,
    mode: Annotated[str | None, typer.Option("--mode", metavar="NAME", help=f"Only of {', '.join(MODES)}.")] = None,
    as_json: JsonOption = False,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print YAML, which `rules apply` reads.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="With --yaml: plans, tiers and defaults, too.")] = False,
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """List all rules, or some."""
    wanted = None if dimension is None else _one_of("--dimension", dimension_of(dimension), DIMENSIONS)
    of_mode = None if mode is None else _one_of("--mode", mode.lower(), MODES)
    if as_json and as_yaml:
        raise ConfigError("--json or --yaml, not both")
    if everything and (not as_yaml or dimension or mode):
        raise ConfigError("--all goes with --yaml, and with neither --dimension nor --mode")
    with _editing(rules_store, config, url, token) as (editor, repository):
        rules = [rule for rule in editor.rules() if wanted in (None, rule.dimension) and of_mode in (None, rule.mode)]
        if everything:
            say_yaml(_sections(rules, repository))
            return
    if as_json:
        say_json([rule.to_data() for rule in rules])
    elif as_yaml:
        say_yaml([rule.to_data() for rule in rules])
    elif rules:
        _say_rules(rules)
    else:
        say("no rules")


@rules_app.command()
def get(
    rule_id: Annotated[str, typer.Argument(metavar="ID", help="Its rule_id.")],
    as_json: JsonOption = False,
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Show one rule, as YAML."""
    with _editing(rules_store, config, url, token) as (editor, repository), _suggesting([rule_id], repository):
        data = editor.rule(rule_id).to_data()
    if as_json:
        say_json(data)
    else:
        say_yaml(data)


@rules_app.command()
def apply(
    file: FilesOption,
    prune: Annotated[bool, typer.Option("--prune", help="Delete rules that are not in the files.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --prune deletes.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Write all that is in files: rules, plans, tiers, policies, clients, strategies. All of it, or nothing.

    A service (--url) is told of them one by one, and takes no tiers and defaults.
    """
    records = _read(file)
    with _editing(rules_store, config, url, token, _nothing_yet if dry_run else _made) as (editor, repository):
        difference = editor.difference(records)
        if not dry_run:
            if prune and difference.other and not yes:
                _ask(difference.other, repository)
            editor.apply(difference, prune=prune)
        _say_applied(difference, prune, dry_run, repository.title)


@rules_app.command()
def delete(
    rule_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Their rule_ids.")],
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Delete rules; all of them, or none if one is not there."""
    with _editing(rules_store, config, url, token) as (editor, repository), _suggesting(rule_ids, repository):
        editor.delete_all(rule_ids)
    for rule_id in dict.fromkeys(rule_ids):
        say(Cell("deleted", "red"), f"  rule {rule_id}")


@rules_app.command()
def diff(
    file: FilesOption,
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Say how files differ from what is kept. Exit code 0 the same, 1 different."""
    records = _read(file)
    with _editing(rules_store, config, url, token) as (editor, repository):
        difference = editor.difference(records)
    for record in difference.added:
        say(Cell(f"+ {_name(record)}", "green"))
    for old, new in difference.changed:
        say(Cell(f"~ {_name(new)}", "yellow"))
        for name, before, after in field_changes(old, new):
            say(f"    {name}: {_value(before)} -> {_value(after)}")
    for record in difference.other:
        say(Cell(f"- {_name(record)}", "red"))
    if not (difference.added or difference.changed or difference.other):
        say(f"no differences, {len(difference.same)} compared")
        return
    title = repository.title
    say(
        f"{len(difference.added)} only in the files, {len(difference.changed)} different, "
        f"{len(difference.other)} only in {title}, {len(difference.same)} the same"
    )
    raise typer.Exit(DIFFERENT)


@contextmanager
def _editing(
    rules_store: str | None,
    config: str | None,
    url: str | None,
    token: str | None,
    if_missing: Callable[[str, str], Repository] = refuse,
) -> Iterator[tuple[Edits, Kept]]:
    service = service_of(url, token, rules_store=rules_store, config=config)
    if service is not None:
        served = ServiceRules(service)
        yield served, served
        return
    with repository_of(rules_store, config, if_missing) as repository:
        yield Editor(repository, actor()), repository


class _NothingYet(FileRepository):
    """The rules of a database that is not there and is not to be made: none."""

    def __init__(self, title: str) -> None:
        super().__init__([])
        self._title = title

    @property
    def title(self) -> str:
        return self._title


def _nothing_yet(path: str, _url: str) -> Repository:
    say(Cell("would be made", "green"), f"    SQLite file {shown(path)}")
    return _NothingYet(f"SQLite file {path}")


def _made(path: str, url: str) -> Repository:
    if url == usual_rules_store():
        make_usual_folder("name a rule database with --rules-store URL")
    repository = open_repository(url)
    say(Cell("made", "green"), f"     SQLite file {shown(path)}")
    return repository


@contextmanager
def _suggesting(rule_ids: Sequence[str], repository: Kept) -> Iterator[None]:
    """Add to an error about a rule that is not there which one may have been meant."""
    try:
        yield
    except NotFound as error:
        known: list[str] = []
        with suppress(Invalid):
            known += [record.id for record in all_records(repository, "rule")]
        missing = [rule_id for rule_id in rule_ids if rule_id not in known]
        close = get_close_matches(missing[0], known, 1) if missing else []
        raise NotFound(f"{error}: did you mean {close[0]!r}?" if close else str(error)) from None


def _read(files: Sequence[str]) -> Sequence[Record]:
    """All records of some files; Invalid, with all mistakes in them and their places."""
    read, _ = read_rule_files(files)
    if read.problems:
        raise Invalid(read.problems)
    return read.records


def _sections(rules: Sequence[Rule], repository: Kept) -> dict[str, Any]:
    """All that a repository keeps, by the sections of a file; those without anything in them are left out."""
    defaults = {record.id: record.body for record in all_records(repository, "default")}
    sections: dict[str, Any] = {
        "rules": [rule.to_data() for rule in rules],
        "plans": {record.id: record.body["limits"] for record in all_records(repository, "plan")},
        "tiers": {record.id: record.body["tier"] for record in all_records(repository, "tier")},
    }
    if "policy" in defaults:
        sections["default_policy"] = dict(defaults["policy"])
    if "policy_key" in defaults:
        sections["policy_key"] = defaults["policy_key"]["parts"]
    if "client_limits" in defaults:
        sections["default_client_limits"] = defaults["client_limits"]["limits"] or OFF
    return {name: section for name, section in sections.items() if section}


def _one_of(option: str, value: str, names: Sequence[str]) -> str:
    if value not in names:
        raise ConfigError(f"{option} is one of {', '.join(names)}, not {value!r}")
    return value


def _ask(rules: Sequence[Record], repository: Kept) -> None:
    """Before rules are deleted, on a terminal; where nobody can answer, --yes has to be said."""
    if not sys.stdin.isatty():
        raise ConfigError(
            f"--prune would delete {_many(len(rules))} not in the files: add --yes, or look with --dry-run"
        )
    for record in rules:
        say(Cell("would be deleted", "red"), f"  {_name(record)}")
    try:
        agreed = typer.confirm(f"Delete {_many(len(rules))} of {repository.title}?", err=True)
    except typer.Abort:  # the end of the input is no yes
        sys.stderr.write("\n")
        agreed = False
    if not agreed:
        raise ConfigError("not agreed: nothing was written")


def _say_rules(rules: Sequence[Rule]) -> None:
    rows = [
        (
            *(rule.rule_id, rule.dimension, rule.identifier, rule.endpoint_pattern, rule.method, rule.tier),
            *(_limit(rule), rule.algorithm, Cell(rule.mode, "" if rule.mode == "enforce" else "yellow")),
            *(moment_text(rule.expires_us) or "-", str(rule.version)),
        )
        for rule in rules
    ]
    say_table(COLUMNS, rows)


def _say_applied(difference: Difference, prune: bool, dry_run: bool, title: str) -> None:
    would = "would be " if dry_run else ""
    deleted = difference.other if prune else ()
    for record in difference.added:
        say(Cell(f"{would}added", "green"), f"    {_name(record)}")
    for old, new in difference.changed:
        changes = ", ".join(f"{c.name} {_value(c.before)} -> {_value(c.after)}" for c in field_changes(old, new))
        say(Cell(f"{would}changed", "yellow"), f"  {_name(new)}: {changes}")
    for record in deleted:
        say(Cell(f"{would}deleted", "red"), f"  {_name(record)}")
    numbers = [(len(difference.added), "added"), (len(difference.changed), "changed"), (len(deleted), "deleted")]
    said = [f"{number} {word}" for number, word in numbers if number or word != "deleted"]
    nothing = "; a dry run, nothing was written" if dry_run else ""
    say(f"{title}: {', '.join(said)}, {len(difference.same)} unchanged{nothing}")


def _limit(rule: Rule) -> str:
    burst = "" if rule.burst is None else f" burst {rule.burst}"
    return f"{rule.limit}/{rule.window_seconds:g}s{burst}"


def _name(record: Record) -> str:
    return f"{record.kind} {shown(record.id)}"


def _many(number: int) -> str:
    return "1 rule" if number == 1 else f"{number} rules"


def _value(value: Any) -> str:
    """A field's value on one line."""
    return (
        "-" if value is None else json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else shown(value)
    )
