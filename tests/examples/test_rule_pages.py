"""The tables about rules, configuration and logs: each row is compared with the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import ModuleType

import pytest

import crestgate
from crestgate import RequestContext, errors, rules
from crestgate.config.environment import NESTED_FIELDS
from crestgate.rules.matching.paths import normalise
from crestgate.rules.rule import RULE_FIELDS, Rule
from crestgate.rules.ruleset import RuleSet
from crestgate.rules.storage.file_sections import SECTIONS
from crestgate.rules.storage.rule_files import INCLUDE, SETTINGS

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"


def table(page: str, head: str) -> list[list[list[str]]]:
    """The code in each cell of the first table whose first line begins with `head`, row by row."""
    return next(tables(page, head))


def tables(page: str, head: str) -> Iterator[list[list[list[str]]]]:
    """The same for every such table."""
    lines = (DOCS / page).read_text().splitlines()
    for start, first in enumerate(lines):
        if first.startswith(head):
            rows = takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
            yield [[re.findall("`([^`]+)`", cell) for cell in row.strip("|").split("|")] for row in rows]


SPELLINGS = [(spelling, row[1]) for row in table("rules.md", "| spelling |") for spelling in row[0]]
PATTERNS = [
    (row[0][0], path, matches)
    for row in table("rules.md", "| pattern | matches |")
    for cell, matches in ((row[1], True), (row[2], False))
    for path in cell
]


@pytest.mark.parametrize(("spelling", "taken"), SPELLINGS)
def test_paths_are_normalized_as_in_the_table(spelling: str, taken: list[str]) -> None:
    assert [normalise(spelling)] == taken


@pytest.mark.parametrize(("pattern", "path", "matches"), PATTERNS)
def test_patterns_match_as_in_the_table(pattern: str, path: str, matches: bool) -> None:
    rule = Rule.read(
        {"rule_id": "r", "dimension": "global", "endpoint_pattern": pattern, "limit": 1, "window_seconds": 1}
    )
    assert rule is not None
    assert bool(RuleSet.empty().edited([rule]).resolve(RequestContext(path=path), 0)) is matches


def test_every_field_of_a_rule_is_in_the_table() -> None:
    written = {name for row in table("rules.md", "| field |") for name in row[0]}
    assert written == {*RULE_FIELDS} - {"origin"}


def test_every_field_of_a_configuration_is_in_the_tables() -> None:
    rows = [row for rows in tables("configuration.md", "| field |") for row in rows]
    mappings = {".".join(path) for path in NESTED_FIELDS}
    inside = {
        ".".join((*path, name)) for path, names in NESTED_FIELDS.items() for name in names if path[0] not in SECTIONS
    }
    assert {row[0][0] for row in rows} == {*SETTINGS, INCLUDE, *inside} - mappings
    assert all(row[2][0] == "CRESTGATE_" + row[0][0].replace(".", "__").upper() for row in rows)
    assert {row[0][0] for row in table("configuration.md", "| section |")} == {*SECTIONS}


def test_every_method_of_an_editor_is_in_the_tables() -> None:
    public = [name for name in vars(rules.Editor) if not name.startswith("_")]
    written = [row[0][0].partition("(")[0] for row in table("library-reference.md", "| method | arguments |")]
    assert sorted(written) == sorted(public)
    in_short = {text.partition("(")[0] for row in table("rules-storage.md", "| method |") for text in row[0]}
    assert in_short == {*public}


@pytest.mark.parametrize("module", [crestgate, rules, errors])
def test_every_public_name_is_at_the_top_of_the_page(module: ModuleType) -> None:
    page = (DOCS / "library-reference.md").read_text()
    top = page.partition("```text\n")[2].partition("```")[0].split()
    assert {*module.__all__} <= {*top}
    assert all(hasattr(module, name) for name in module.__all__)


def logged() -> Iterator[str]:
    """Every message that is logged, except those for debugging, with `…` for what changes."""
    for path in (ROOT / "src" / "crestgate").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            messages: list[ast.expr] = []
            if isinstance(node, ast.Call) and called.startswith(("_log.", "self._log.")) and called != "_log.debug":
                messages = [node.args[1 if called == "_log.log" else 0]]
            elif isinstance(node, ast.Call) and called == "ReloadMessages":
                messages = node.args
            for message in messages:
                if isinstance(message, ast.Constant):  # else it is one of ReloadMessages
                    yield in_short(re.sub("%[sd]", "…", ast.literal_eval(message)))


def in_short(message: str) -> str:
    return re.sub("…(: …)+", "…", re.sub(r"\b(N|[0-9]+)\b", "…", message))


def test_log_messages_are_those_that_the_code_logs() -> None:
    rows = [text for one in tables("observability.md", "| level | message |") for row in one for text in row[1]]
    assert {in_short(text) for text in rows} == {*logged()}
    about_rules = {in_short(text) for row in table("rules-storage.md", "| level | message |") for text in row[1]}
    assert about_rules <= {*logged()}
