"""Rule files: a main file, with or without settings in it, and the files it includes. `read_rule_files` reads all of
them, and reports all errors together: at the start, for a check, or when a file has changed.

An included file has only rule sections, so that all settings are in one file. A folder means its *.yaml, *.yml and
*.json files, sorted by name, without hidden files and subfolders. A file that is named twice is read once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from crestgate.errors import Problem
from crestgate.loader.document import Document, Stamp, read_document, stamp_of
from crestgate.loader.fields import Fields, Problems, describe, join_names
from crestgate.loader.file_reloader import PathState
from crestgate.loader.overlay import Variable, overlay
from crestgate.rules.port import Record
from crestgate.rules.storage.file_sections import SECTIONS, read_sections
from crestgate.runtime.url_options import redact_url

__all__ = ["INCLUDE", "SETTINGS", "RuleFiles", "in_order", "path_state", "read_rule_files"]

INCLUDE = "include"
SETTINGS = (
    *(
        "store",
        "migrate",
        "stores",
        "rules_store",
        "on_store_error",
        "fallback_instances",
        "denial_cache",
        "refresh_seconds",
    ),
    *("mode", "server", "headers", "metrics", "logs", "tracing", "traffic", "pressure", "deprecated", "envoy"),
)
"""Settings that a main file may have besides rules. They are read by config, and only accepted here."""
ENDINGS = (".yaml", ".yml", ".json")


@dataclass(slots=True)
class RuleFiles:
    """The contents of the files, and the states by which changes are detected."""

    paths: Sequence[str]
    variables: Sequence[Variable] = field(repr=False)  # one may have a password
    records: list[Record] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    included: list[str] = field(default_factory=list)
    stores_used: list[tuple[str, Problem]] = field(default_factory=list)
    """The stores that rules name, and where, as a problem without a message."""
    """Paths of the included files and folders."""
    states: dict[str, PathState] = field(default_factory=dict)
    """Every file and folder that was checked, with its state when it was read."""
    digests: dict[str, bytes | None] = field(default_factory=dict)
    """Digest of each file, in the order in which they were read."""


class _ReadRecord(NamedTuple):
    document: Document
    field_path: str
    record: Record


def read_rule_files(paths: Sequence[str], variables: Sequence[Variable] = ()) -> tuple[RuleFiles, Document]:
    """Read files and their includes, with the variables of the environment over the first file. Also returns the first
    document, for its settings; without files, an empty one."""
    files = RuleFiles(paths, variables)
    found: list[_ReadRecord] = []
    mains: list[Document] = []
    includes: list[tuple[Document, str, str]] = []
    known: set[str] = set()
    for path in paths:
        state, real = path_state(path), os.path.realpath(path)
        if isinstance(state, tuple):
            includes.append((Document("", {}), "", path))
        elif real in known:
            files.states.setdefault(path, state)
        else:
            known.add(real)
            mains.append(_read(path, files))
    mains = mains or [Document("", {})]
    mains[0] = overlay(mains[0], variables)
    for main in mains:
        problems = Problems()
        fields = Fields(main.data, "", problems, (*SETTINGS, INCLUDE, *SECTIONS))
        found += [_ReadRecord(main, field_path, record) for field_path, record in read_sections(fields)]
        includes += [(main, field_path, path) for field_path, path in _includes(fields, main)]
        files.problems += map(main.locate, problems.entries)
    for main, document in _included(includes, known, files):
        problems = Problems()
        fields = Fields(_rules_only(document, main, problems), "", problems, SECTIONS)
        found += [_ReadRecord(document, field_path, record) for field_path, record in read_sections(fields)]
        files.problems += map(document.locate, problems.entries)
    files.problems += _conflicts(found)
    for item in found:
        if item.record.kind == "rule" and item.record.body.get("store") is not None:
            used = item.document.locate(Problem(f"{item.field_path}.store", ""))
            files.stores_used.append((item.record.body["store"], used))
    files.problems = in_order(files.problems, files)
    files.records = [item.record for item in found]
    return files, mains[0]


def path_state(path: str) -> PathState:
    """The state of a path now, without reading it."""
    try:
        names = [entry for entry in os.listdir(path) if entry.endswith(ENDINGS) and not entry.startswith(".")]
    except (OSError, ValueError):  # usually not a folder
        return stamp_of(path)
    return tuple(sorted(names))


def in_order(problems: Iterable[Problem], files: RuleFiles) -> list[Problem]:
    """Problems sorted by file and line; those of variables last."""
    order = {file: position for position, file in enumerate(files.digests)}
    return sorted(problems, key=lambda problem: (order.get(problem.file or "", len(order)), problem.line or 0))


def _read(path: str, files: RuleFiles) -> Document:
    document = read_document(path)
    files.states[path] = document.stamp
    files.digests[path] = document.digest
    files.problems += document.problems
    if isinstance(document.data, list):  # a list is a list of rules
        line, below = document.root
        return replace(document, data={"rules": document.data}, root=(line, {"rules": (line, below)}))
    return document


def _includes(fields: Fields, main: Document) -> Iterator[tuple[str, str]]:
    """The paths that a file includes, with their field paths."""
    value = fields.values.get(INCLUDE)
    if value is None:
        return
    is_list = isinstance(value, list)
    # Paths in variables are relative to the working directory, in files to the file.
    folder = "" if INCLUDE in main.variables else os.path.dirname(main.file)
    for position, path in enumerate(value if is_list else [value]):
        field_path = f"{INCLUDE}[{position}]" if is_list else INCLUDE
        if isinstance(path, str) and path:
            yield field_path, os.path.join(folder, path)
        else:
            fields.problems.add(field_path, f"must be the path of a file or a folder, not {describe(path)}")


def _included(
    includes: Iterable[tuple[Document, str, str]], known: set[str], files: RuleFiles
) -> Iterator[tuple[Document, Document]]:
    """Read each included file once: pairs of the including and the included document."""
    for main, field_path, path in includes:
        state = path_state(path)
        files.states.setdefault(path, state)  # keep the state of files that are already read
        files.included.append(path)
        if state is None:
            message = f"there is no file or folder {redact_url(path)!r}: create it, or correct the path"
            files.problems.append(main.locate(Problem(field_path, message)))
            continue
        named = isinstance(state, Stamp)
        for file in [path] if isinstance(state, Stamp) else [os.path.join(path, name) for name in state]:
            real = os.path.realpath(file)
            if real not in known:
                known.add(real)
                yield main, _read(file, files)
            elif named and real == os.path.realpath(main.file):
                files.problems.append(main.locate(Problem(field_path, "is this file itself: name other files only")))


def _rules_only(document: Document, main: Document, problems: Problems) -> Any:
    """The data of an included file without settings and includes, which are reported."""
    data = document.data
    if not isinstance(data, Mapping):
        return data
    main_file = main.file or "the main file"
    for name in data:
        if name == INCLUDE:
            problems.add(name, f"an included file cannot include others: name them under 'include' in {main_file}")
        elif name in SETTINGS:
            problems.add(name, f"belongs in {main_file}: an included file holds only {join_names(SECTIONS)}")
    return {name: value for name, value in data.items() if name not in (*SETTINGS, INCLUDE)}


def _conflicts(found: Sequence[_ReadRecord]) -> Iterator[Problem]:
    """Records with the same name, and rules that are equally specific in one slot: each reported at the later one."""
    ids: dict[tuple[str, str], _ReadRecord] = {}
    holders: dict[str, _ReadRecord] = {}
    for item in found:
        record = item.record
        first = ids.setdefault((record.kind, record.id), item)
        if first is not item:
            yield item.document.locate(Problem(item.field_path, _duplicate(first, item)))
        elif record.unique_key is not None:
            rival = holders.setdefault(record.unique_key, item)
            if rival is not item:
                message = (
                    f"is as specific as the rule {rival.record.id!r} at {_where(rival)} in the same slot (dimension, "
                    "endpoint_pattern, method and window_seconds): keep one of them, or give one an identifier, a "
                    "tier or an expires_at that the other does not have"
                )
                yield item.document.locate(Problem(item.field_path, message))


def _duplicate(first: _ReadRecord, second: _ReadRecord) -> str:
    if second.record.kind == "rule" and second.field_path.startswith("rules["):
        return f"the rule_id {second.record.id!r} is taken by the rule at {_where(first)}: write another"
    return f"is already defined at {_where(first)}: keep one of the two"


def _where(item: _ReadRecord) -> str:
    located = item.document.locate(Problem(item.field_path, ""))
    return f"{located.file}:{located.line}" if located.line is not None else str(located.file)
