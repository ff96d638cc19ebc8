"""Parsing files: notations, line numbers, problems."""

from __future__ import annotations

import builtins
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.errors import ConfigError, Problem
from crestgate.loader import document as document_module
from crestgate.loader import parser as parser_module
from crestgate.loader.document import Document, digest_of, read_document, stamp_of
from crestgate.loader.fields import Fields, Problems
from crestgate.loader.parser import parse, scalar


@pytest.fixture(params=["C", "Python"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both parsers of PyYAML: in C, and the fallback in Python."""
    if request.param == "Python":
        monkeypatch.delattr(yaml, "CSafeLoader")
    return str(request.param)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("rules.yaml")


def read(file: Path, content: str | bytes) -> Document:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_document(str(file))


def messages(document: Document) -> list[str]:
    return [str(problem) for problem in document.problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("nil", "nil"),
        ("true", True),
        ("False", False),
        *((word, word) for word in ("yes", "no", "NO", "on", "off", "Off", "y", "n", "tRUE")),
        ("0", 0),
        ("-17", -17),
        ("+17", 17),
        ("9007199254740993", 9007199254740993),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("-1.5e-3", -0.0015),
        ("1e3", 1000.0),
        *((text, text) for text in ("010", "-01", "1_000", "0x1F", "0o17", "0b11", "1:30", "12:30:45", "00.5")),
        *((text, text) for text in (".inf", "-.INF", ".nan", "1e999", ".", "-", "+", "e3", "1e", "1.2.3", "10.0.0.1")),
        *((text, text) for text in ("2026-01-31", "2026-01-31T12:00:00Z", "100/minute", "=", "::1")),
    ],
)
def test_scalar_types(text: str, value: object) -> None:
    assert (scalar(text), type(scalar(text))) == (value, type(value))
    if text not in ("=", "-"):
        assert parse(f"a: {text}").data == {"a": value}
    assert parse(f"a: '{text}'").data == {"a": text}
    assert parse(f'a: "{text}"').data == {"a": text}


@settings(deadline=None)
@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_round_trip(number: float) -> None:
    if abs(number) < 10**40:
        assert scalar(repr(number)) == number


def test_keys_are_text(file: Path) -> None:
    document = read(file, "42: a\n1.10: b\ntrue: c\non: d\n2026-01-31: e\n~: f\n010: g\n'': h\n")
    assert document.data == dict(
        zip(["42", "1.10", "true", "on", "2026-01-31", "~", "010", ""], "abcdefgh", strict=True)
    )
    assert not document.problems


@pytest.mark.parametrize("content", ["", "\n\n", "# nothing but words\n", "---\n", "~\n", "\ufeff"])
def test_empty_file_is_an_empty_mapping(file: Path, content: str) -> None:
    document = read(file, content)
    assert (document.data, document.problems) == ({}, ())


def test_json_is_parsed(file: Path) -> None:
    data = {"rules": [{"limit": 5, "window": 0.5, "name": 'Zürich \\ "x"', "none": None, "yes": True}], "e": {}}
    assert read(file, json.dumps(data)).data == data
    assert read(file, json.dumps(data, indent=2, ensure_ascii=False)).data == data
    beyond = {"a": "\U0001f600 \\ud83d\\ude00 \\\U0001f600", "\U0001d11e": "\\"}
    assert read(file, json.dumps(beyond)).data == beyond


def test_json_indented_by_tabs(file: Path, parser: str) -> None:
    if parser == "C":  # the parser in Python refuses tabs
        assert read(file, '{\n\t"a":\t1\n}\n').data == {"a": 1}


def test_line_endings(file: Path) -> None:
    document = read(file, "a: 1\r\nb:\r\n  - 2\r\n  - 3\r\n")
    assert document.data == {"a": 1, "b": [2, 3]}
    assert document.lines["b[1]"] == 4


def test_byte_order_mark(file: Path) -> None:
    assert read(file, b"\xef\xbb\xbfa: 1\n").data == {"a": 1}


NESTED = """\
# a comment
rules:
  - rule_id: a
    limit: 5

  - {rule_id: b,
     limit: 7}
plans:
  a.b[1]: |
    5/s
  gold: [1/s,
    2/m]
"""


def test_every_value_has_a_line(file: Path) -> None:
    assert dict(read(file, NESTED).lines) == {
        "": 2,
        "rules": 2,
        "rules[0]": 3,
        "rules[0].rule_id": 3,
        "rules[0].limit": 4,
        "rules[1]": 6,
        "rules[1].rule_id": 6,
        "rules[1].limit": 7,
        "plans": 8,
        "plans.a.b[1]": 9,
        "plans.gold": 11,
        "plans.gold[0]": 11,
        "plans.gold[1]": 12,
    }


def test_problem_is_located_at_its_field_or_its_parent(file: Path) -> None:
    document = read(file, NESTED)
    for path, line in [
        ("rules[1].limit", 7),
        ("rules[1].window_seconds", 6),
        ("rules[7].limit", 2),
        ("plans.a.b[1]", 9),
        ("plans.a.b[1].x", 9),
        ("plans.gold[1][0]", 12),
        ("store", 2),
        ("", 2),
    ]:
        assert document.locate(Problem(path, "x")) == Problem(path, "x", "rules.yaml", line)


def test_paths_match_those_of_fields(file: Path) -> None:
    document = read(file, NESTED)
    fields = Fields(document.data, "", Problems(), document.data)
    for path, item in fields.items("rules"):
        assert path in document.lines
        assert {Fields(item, path, Problems(), item).path(name) for name in item} <= set(document.lines)
    assert {path for path, _, _ in fields.entries("plans")} <= set(document.lines)


def test_variable_overrides_the_location_of_nested_fields() -> None:
    document = Document("f", {}, (), (1, {"a": (1, {"b": 2, "c": 3})}), {"a.b": "CRESTGATE_A__B"})
    assert document.locate(Problem("a.b.x", "")) == Problem("a.b.x", "", "CRESTGATE_A__B", None)
    assert document.locate(Problem("a.c", "")) == Problem("a.c", "", "f", 3)


def test_aliases_keep_the_lines_of_their_anchor(file: Path) -> None:
    document = read(file, "plans:\n  gold: &gold\n    - 5/s\n  silver: *gold\nname: &n x\n*n : 3\n")
    assert document.data == {"plans": {"gold": ["5/s"], "silver": ["5/s"]}, "name": "x", "x": 3}
    assert (document.lines["plans.silver"], document.lines["plans.silver[0]"]) == (4, 3)


def test_merged_mappings(file: Path) -> None:
    text = """\
one: &one {a: 1, b: 1}
two: &two {b: 2, c: 2}
both:
  <<: [*one, *two]
  c: 3
first:
  a: 0
  <<: *two
quoted: {"<<": 5}
"""
    document = read(file, text)
    assert document.data["both"] == {"a": 1, "b": 1, "c": 3}
    assert document.data["first"] == {"a": 0, "b": 2, "c": 2}
    assert document.data["quoted"] == {"<<": 5}
    assert [document.lines[f"both.{name}"] for name in "abc"] == [1, 1, 5]


@pytest.mark.parametrize("value", ["5", "[5]", "[]", "~"])
def test_only_mappings_are_merged(file: Path, value: str) -> None:
    assert messages(read(file, f"a:\n  <<: {value}\n")) == [
        "rules.yaml:2: a.<<: '<<' adds the fields of another mapping: write '<<: *name', or '<<: [*one, *other]'"
    ]


def test_tags(file: Path) -> None:
    document = read(file, "a: !!str 5\nb: !!int 5\nc: !!float 5\nd: !!map {}\ne: !!seq []\nf: ! 5\ng: !!null ''\n")
    assert document.data == {"a": "5", "b": 5, "c": 5, "d": {}, "e": [], "f": "5", "g": None}
    assert not document.problems
    for tag in ("!!python/object:os.system", "!env", "!!timestamp", "!!binary"):
        assert len(read(file, f"a: {tag} x\nb: {tag} {{}}\nc: {tag} []\n").problems) == 3


def test_all_duplicate_keys_are_reported(file: Path) -> None:
    document = read(file, "a: 1\nb: {c: 1, c: 2}\na: 2\nd:\n  - e: 1\n    e: 2\na: 3\n")
    assert messages(document) == [
        "rules.yaml:2: b.c: is written twice, at line 2 and at line 2: keep one of them",
        "rules.yaml:3: a: is written twice, at line 1 and at line 3: keep one of them",
        "rules.yaml:6: d[0].e: is written twice, at line 5 and at line 6: keep one of them",
        "rules.yaml:7: a: is written twice, at line 1 and at line 7: keep one of them",
    ]
    assert document.data == {"a": 1, "b": {"c": 1}, "d": [{"e": 1}]}


def test_problems_before_a_fatal_one_are_reported(file: Path) -> None:
    document = read(file, "a: 1\na: 2\nb: 'x\n")
    assert [problem.line for problem in document.problems] == [2, 3]
    assert document.data == {}


def test_alias_expansion_is_bounded(file: Path) -> None:
    laughs = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    laughs += [
        f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    (problem,) = read(file, "\n".join(laughs)).problems
    assert "more than 1,000,000 values" in problem.message


def test_merge_expansion_is_bounded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_module, "MAX_ALIASED", 100)
    base = "base: &base {a: 1, b: 2, c: 3, d: 4}\n"
    assert not read(file, base + "".join(f"m{n}: {{<<: *base}}\n" for n in range(10))).problems
    assert read(file, base + "".join(f"m{n}: {{<<: *base}}\n" for n in range(13))).problems


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_nesting_is_bounded(file: Path, opening: str) -> None:
    (problem,) = read(file, opening * 100_000).problems
    assert problem.message == "is nested deeper than 64 levels: check that every bracket is closed"


def test_several_documents(file: Path) -> None:
    assert messages(read(file, "---\na: 1\n---\nb: 2\n")) == [
        "rules.yaml:3: '---' starts a second document, and a file must have one: write it in a separate file"
    ]
    assert read(file, "---\na: 1\n...\n").data == {"a": 1}


def test_unreadable_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder")
    os.mkfifo("pipe")
    os.symlink("circle", "circle")
    assert [str(read_document(path).problems[0]) for path in ("none", "folder", "pipe", "circle", "folder/none/x")] == [
        "none: there is no such file: correct the path, or create the file",
        "folder: is a folder: name a file in it",
        "pipe: is not a regular file: save its contents as one, and name that",
        "circle: cannot be read: Too many levels of symbolic links",
        "folder/none/x: there is no such file: correct the path, or create the file",
    ]
    assert read_document("a\0b").problems[0].message == "cannot be read: embedded null byte"
    assert (stamp_of("a\0b"), digest_of("a\0b"), stamp_of("none"), digest_of("folder")) == (None, None, None, None)


def test_file_without_read_permission(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", refuse)
    document = read_document(str(file))
    monkeypatch.undo()
    assert messages(document) == ["rules.yaml: permission denied: give this process read permission"]


def test_file_too_large(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_module, "MAX_BYTES", 2**20)
    assert not read(file, b"#" * 2**20).problems
    assert messages(read(file, b"#" * (2**20 + 1))) == [
        "rules.yaml: is larger than 1 MB: split it, and name the parts under 'include'"
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: \xff\n", "rules.yaml:2: the byte 0xff is not UTF-8: save the file as UTF-8"),
        ("a: 1\n".encode("utf-16"), "rules.yaml:1: the byte 0xff is not UTF-8: save the file as UTF-8"),
        (b"a: 1\n\nb: \x00\n", "rules.yaml:3: contains the character U+0000, which YAML does not allow: remove it"),
        (b"a: \x1b[1m\n", "rules.yaml:1: contains the character U+001B, which YAML does not allow: remove it"),
    ],
)
def test_invalid_characters(file: Path, content: bytes, message: str) -> None:
    assert messages(read(file, content)) == [message]


@pytest.mark.parametrize(
    "line",
    [
        "store: redis://user:hunter2@host: x",
        "store: @redis://user:hunter2@host",
        "store: 'redis://user:hunter2@host' x",
        "store: *redis://user:hunter2@host",
        "redis://user:hunter2@host\nmode: service",
        'store: "redis://user:hunter2@host\\d"',
        "store: |redis://user:hunter2@host",
    ],
)
def test_passwords_are_not_shown(file: Path, line: str) -> None:
    document = read(file, f"{line}\n")
    assert document.problems
    assert "hunter2" not in str(document.problems)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab:#'\"-[{*&! \n%@", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.[0]: -<#", min_size=1, max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["rules", "plans", "x"]), values), st.booleans())
def test_dumped_data_is_parsed_back(data: dict[str, Any], flow: bool) -> None:
    """Output of PyYAML and JSON is parsed to the same data, and every value has a line."""
    text = yaml.safe_dump(data, default_flow_style=flow, allow_unicode=True)
    for written in (text, json.dumps(data)):
        parsed = parse(written)
        assert (parsed.data, parsed.problems) == (data, [])
        assert len(Document("f", parsed.data, (), parsed.lines).lines) >= 1


@settings(deadline=None)
@given(st.text("ab: -[]{}'\"\n\t#&*!|>%@`,?0\\", max_size=40))
def test_any_text_is_parsed_or_reported(text: str) -> None:
    parsed = parse(text)
    lines = text.count("\n") + 1
    assert all(problem.line is not None and 1 <= problem.line <= lines for problem in parsed.problems)
    assert all(problem.message for problem in parsed.problems)


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "yaml":
            raise ModuleNotFoundError("No module named 'yaml'", name="yaml")
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(
        ConfigError, match=r"the package 'yaml' is missing: pip install '.\[config\]' in a clone of Crestgate"
    ):
        parse("a: 1")


def test_stamp_changes_with_the_file(file: Path) -> None:
    first = read(file, "a: 1\n")
    assert first.stamp == stamp_of(str(file))
    assert first.digest == digest_of(str(file))
    file.write_text("a: 22\n")
    assert first.stamp != stamp_of(str(file))
    assert first.digest != digest_of(str(file))


def test_values_at_text_paths_are_text() -> None:
    text = (
        "name: 1.10\nlist: [{name: True}, {name: 007}, {name: ~}, {name: }, {name: '5'}, {other: 1.10}]\n"
        "again: &it {name: 5}\nmore: [*it]\n"
    )
    parsed = parse(text, re.compile(r"name|list\[[0-9]+\]\.name"))
    assert parsed.problems == []
    assert parsed.data == {
        "name": "1.10",
        "list": [{"name": "True"}, {"name": "007"}, {"name": None}, {"name": None}, {"name": "5"}, {"other": 1.1}],
        "again": {"name": 5},
        "more": [{"name": 5}],
    }


def test_read_document_with_text_paths(file: Path) -> None:
    file.write_text("value: 1.10\n")
    assert read_document(str(file), re.compile("value")).data == {"value": "1.10"}
    assert read_document(str(file)).data == {"value": 1.1}
