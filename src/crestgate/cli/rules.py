"""`crestgate rules`: list, apply, compare and delete rules of a repository, or of a running service."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Annotated, Any, Protocol

import typer

from crestgate.cli.groups import command_group
from crestgate.cli.locations import (
    ConfigOption,
    JsonOption,
    RulesStoreOption,
    TokenOption,
    UrlOption,
    actor,
    open_rules_for,
    refuse_missing,
)
from crestgate.cli.output import Cell, Column, escape_control, print_json, print_line, print_table, print_yaml
from crestgate.cli.remote import remote_service
from crestgate.cli.remote_rules import ServiceRules
from crestgate.config.default_folder import default_rules_url, make_default_folder
from crestgate.core.dimensions import DIMENSION_NAMES, is_attribute_name, parse_dimensions
from crestgate.core.notation import canonical
from crestgate.errors import ConfigError, NotFoundError, ValidationError
from crestgate.rules.diff import Difference, all_records, field_changes
from crestgate.rules.editor import Editor
from crestgate.rules.port import Lookup, Record, Repository, UnreadableRecord
from crestgate.rules.rule import MODES, Rule
from crestgate.rules.storage.factory import open_repository
from crestgate.rules.storage.file_sections import OFF
from crestgate.rules.storage.files import FileRepository
from crestgate.rules.storage.rule_files import read_rule_files
from crestgate.rules.timestamps import format_timestamp

__all__ = ["rules_app"]

DIFFERENT = 1
_SHORT_UNITS = {"second": "s", "minute": "min", "hour": "h", "day": "d", "week": "w"}
_UNIT = re.compile(rf"\b({'|'.join(_SHORT_UNITS)})s?\b")
COLUMNS = (
    *(Column("id", wraps=True), Column("dimension", drop_order=9), Column("identifier", wraps=True, drop_order=6)),
    *(
        Column("pattern", wraps=True, drop_order=7),
        Column("method", drop_order=5),
        Column("tier", drop_order=4),
        Column("limit"),
    ),
    *(
        Column("algorithm", drop_order=2),
        Column("mode", drop_order=8),
        Column("expires", drop_order=3),
        Column("version", drop_order=1),
    ),
)

rules_app = command_group("List and change rules.")

FilesOption = Annotated[
    list[str], typer.Option("--file", "-f", metavar="FILE", help="Rules in YAML or JSON; a file or folder; repeatable.")
]


class RuleEditor(Protocol):
    """An Editor, or the rules of a service."""

    def readable_rules(self) -> tuple[Sequence[Rule], Sequence[UnreadableRecord]]: ...

    def rule(self, rule_id: str) -> Rule: ...

    def difference(self, records: Iterable[Record]) -> Difference: ...

    def apply(self, difference: Difference, *, prune: bool = False) -> None: ...

    def delete_all(self, rule_ids: Iterable[str]) -> None: ...


class RuleSource(Lookup, Protocol):
    """Where the rules are."""

    @property
    def title(self) -> str: ...


@rules_app.command("list")
def list_rules(
    dimension: Annotated[
        str | None, typer.Option("--dimension", metavar="NAME", help="Only of user, ip, …, an attribute, or org,model.")
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
    """List all rules, or some. Rules that cannot be read are reported at the end, with exit code 2."""
    dimension_name = None if dimension is None else _dimension(dimension)
    wanted_mode = None if mode is None else _one_of("--mode", mode.lower(), MODES)
    if as_json and as_yaml:
        raise ConfigError("--json or --yaml, not both")
    if everything and (not as_yaml or dimension or mode):
        raise ConfigError("--all requires --yaml, and excludes --dimension and --mode")
    with _open_editor(rules_store, config, url, token) as (editor, repository):
        readable, unreadable = editor.readable_rules()
        rules = [
            rule
            for rule in readable
            if dimension_name in (None, rule.slot_dimension) and wanted_mode in (None, rule.mode)
        ]
        sections = _sections(rules, repository) if everything else None
    if sections is not None:
        print_yaml(sections)
    elif as_json:
        print_json([rule.to_data() for rule in rules])
    elif as_yaml:
        print_yaml([rule.to_data() for rule in rules])
    elif rules:
        _print_rules(rules)
    else:
        print_line("no rules")
    if unreadable:  # an error: this may be a backup
        raise ValidationError([problem for one in unreadable for problem in one.problems])


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
    with _open_editor(rules_store, config, url, token) as (editor, repository), _with_suggestion([rule_id], repository):
        data = editor.rule(rule_id).to_data()
    if as_json:
        print_json(data)
    else:
        print_yaml(data)


@rules_app.command()
def apply(
    file: FilesOption,
    prune: Annotated[bool, typer.Option("--prune", help="Delete rules that are not in the files.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --prune deletes.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would change.")] = False,
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Write the contents of files: rules, plans, tiers, policies, clients, strategies. All of it, or nothing.

    Through a service (--url) they are written one by one. A service does not accept tiers and defaults.
    """
    records = _read(file)
    with _open_editor(rules_store, config, url, token, _empty_repository if dry_run else _create_database) as (
        editor,
        repository,
    ):
        difference = editor.difference(records)
        if not dry_run:
            if prune and difference.other and not yes:
                _confirm_deletion(difference.other, repository)
            editor.apply(difference, prune=prune)
        _print_applied(difference, prune, dry_run, repository.title)


@rules_app.command()
def delete(
    rule_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Their rule_ids.")],
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Delete rules; all of them, or none if one does not exist."""
    with _open_editor(rules_store, config, url, token) as (editor, repository), _with_suggestion(rule_ids, repository):
        editor.delete_all(rule_ids)
    for rule_id in dict.fromkeys(rule_ids):
        print_line(Cell("deleted", "red"), f"  rule {rule_id}")


@rules_app.command()
def diff(
    file: FilesOption,
    rules_store: RulesStoreOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Show how files differ from the stored rules. Exit code 0 the same, 1 different."""
    records = _read(file)
    with _open_editor(rules_store, config, url, token) as (editor, repository):
        difference = editor.difference(records)
    for record in difference.added:
        print_line(Cell(f"+ {_name(record)}", "green"))
    for old, new in difference.changed:
        print_line(Cell(f"~ {_name(new)}", "yellow"))
        for name, before, after in field_changes(old, new):
            print_line(f"    {name}: {_value(before)} -> {_value(after)}")
    for record in difference.other:
        print_line(Cell(f"- {_name(record)}", "red"))
    if not (difference.added or difference.changed or difference.other):
        print_line(f"no differences, {len(difference.same)} compared")
        return
    title = repository.title
    print_line(
        f"{len(difference.added)} only in the files, {len(difference.changed)} different, "
        f"{len(difference.other)} only in {title}, {len(difference.same)} the same"
    )
    raise typer.Exit(DIFFERENT)


@contextmanager
def _open_editor(
    rules_store: str | None,
    config: str | None,
    url: str | None,
    token: str | None,
    if_missing: Callable[[str, str], Repository] = refuse_missing,
) -> Iterator[tuple[RuleEditor, RuleSource]]:
    service = remote_service(url, token, rules_store=rules_store, config=config)
    if service is not None:
        service_rules = ServiceRules(service)
        yield service_rules, service_rules
        return
    with open_rules_for(rules_store, config, if_missing, lists_rules=True) as repository:
        yield Editor(repository, actor()), repository


class EmptyRepository(FileRepository):
    """Replaces a database that does not exist, in a dry run."""

    def __init__(self, title: str) -> None:
        super().__init__([])
        self._title = title

    @property
    def title(self) -> str:
        return self._title


def _empty_repository(path: str, _url: str) -> Repository:
    print_line(Cell("would be created", "green"), f"  SQLite file {escape_control(path)}")
    return EmptyRepository(f"SQLite file {path}")


def _create_database(path: str, url: str) -> Repository:
    if url == default_rules_url():
        make_default_folder("name a rule database with --rules-store URL")
    repository = open_repository(url)
    print_line(Cell("created", "green"), f"  SQLite file {escape_control(path)}")
    return repository


@contextmanager
def _with_suggestion(rule_ids: Sequence[str], repository: RuleSource) -> Iterator[None]:
    """Add a similar id to the error about an unknown rule."""
    try:
        yield
    except NotFoundError as error:
        known: list[str] = []
        with suppress(ValidationError):
            known += [record.id for record in all_records(repository, "rule")]
        missing = [rule_id for rule_id in rule_ids if rule_id not in known]
        close = get_close_matches(missing[0], known, 1) if missing else []
        raise NotFoundError(f"{error}: did you mean {close[0]!r}?" if close else str(error)) from None


def _read(files: Sequence[str]) -> Sequence[Record]:
    """All records of some files; ValidationError has all errors with file and line."""
    read, _ = read_rule_files(files)
    if read.problems:
        raise ValidationError(read.problems)
    return read.records


def _sections(rules: Sequence[Rule], repository: RuleSource) -> dict[str, Any]:
    """The contents of a repository as the sections of a file, without empty ones."""
    defaults = {record.id: record.body for record in all_records(repository, "default")}
    sections: dict[str, Any] = {
        "rules": [rule.to_data() for rule in rules],
        "plans": {
            record.id: record.body if record.body.get("lease") else record.body["limits"]
            for record in all_records(repository, "plan")
        },
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


def _confirm_deletion(rules: Sequence[Record], repository: RuleSource) -> None:
    """Ask on a terminal; elsewhere --yes is required."""
    if not sys.stdin.isatty():
        raise ConfigError(
            f"--prune would delete {_count_rules(len(rules))} not in the files: add --yes, or look with --dry-run"
        )
    for record in rules:
        print_line(Cell("would be deleted", "red"), f"  {_name(record)}")
    try:
        confirmed = typer.confirm(f"Delete {_count_rules(len(rules))} of {repository.title}?", err=True)
    except typer.Abort:  # end of input
        sys.stderr.write("\n")
        confirmed = False
    if not confirmed:
        raise ConfigError("not confirmed: nothing was written")


def _dimension(text: str) -> str:
    """The dimension of `--dimension`: a built-in one, an attribute, or several separated by commas."""
    name = parse_dimensions(text)
    for part in name.split(","):
        if not is_attribute_name(part):
            _one_of("--dimension", part, DIMENSION_NAMES)
    return name


def _print_rules(rules: Sequence[Rule]) -> None:
    now_us = time.time_ns() // 1000
    rows = [
        (
            *(rule.rule_id, rule.dimension, rule.identifier, rule.endpoint_pattern, rule.method, rule.tier),
            *(_limit(rule), rule.algorithm, Cell(rule.mode, "" if rule.mode == "enforce" else "yellow")),
            *(_expires(rule, now_us), str(rule.version)),
        )
        for rule in rules
    ]
    print_table(COLUMNS, rows)


def _expires(rule: Rule, now_us: int) -> str | Cell:
    if rule.expires_us is None:
        return "-"
    end = format_timestamp(rule.expires_us) or "-"
    return end if rule.expires_us > now_us else Cell(f"{end} (expired)", "red")


def _print_applied(difference: Difference, prune: bool, dry_run: bool, title: str) -> None:
    would = "would be " if dry_run else ""
    deleted = difference.other if prune else ()
    for record in difference.added:
        print_line(Cell(f"{would}added", "green"), f"    {_name(record)}")
    for old, new in difference.changed:
        changes = ", ".join(f"{c.name} {_value(c.before)} -> {_value(c.after)}" for c in field_changes(old, new))
        print_line(Cell(f"{would}changed", "yellow"), f"  {_name(new)}: {changes}")
    for record in deleted:
        print_line(Cell(f"{would}deleted", "red"), f"  {_name(record)}")
    numbers = [(len(difference.added), "added"), (len(difference.changed), "changed"), (len(deleted), "deleted")]
    counts = [f"{number} {word}" for number, word in numbers if number or word != "deleted"]
    nothing = "; dry run, nothing was written" if dry_run else ""
    print_line(f"{title}: {', '.join(counts)}, {len(difference.same)} unchanged{nothing}")


def _limit(rule: Rule) -> str:
    """In notation, with short units: a table has little room."""
    limit = rule.compiled()
    if limit.unit is not None:
        return str(limit)
    return _UNIT.sub(lambda match: _SHORT_UNITS[match[1]], canonical(limit.count, limit.period_us, limit.burst, None))


def _name(record: Record) -> str:
    return f"{record.kind} {escape_control(record.id)}"


def _count_rules(number: int) -> str:
    return "1 rule" if number == 1 else f"{number} rules"


def _value(value: Any) -> str:
    """A value on one line."""
    return (
        "-"
        if value is None
        else json.dumps(value, ensure_ascii=False)
        if not isinstance(value, str)
        else escape_control(value)
    )
