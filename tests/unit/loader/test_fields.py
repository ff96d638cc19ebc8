"""Reading fields: absent, wrong, and values in messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from crestgate.loader.fields import Fields, Problems, describe


def read(data: object, ask: Callable[[Fields], Any]) -> tuple[Any, list[str]]:
    problems = Problems()
    found = ask(Fields(data, "at", problems, ["x"]))
    return found, [str(problem) for problem in problems.entries]


ASKED: list[tuple[Callable[..., Any], object, str]] = [
    (lambda fields, **how: fields.text("x", **how), "a", "a text"),
    (lambda fields, **how: fields.integer("x", **how), 5, "a whole number, 0 or more"),
    (lambda fields, **how: fields.seconds("x", **how), 0.5, "a number of seconds"),
    (lambda fields, **how: fields.choice("x", ["a", "b"], **how), "b", "one of a, b"),
]


@pytest.mark.parametrize(("ask", "value", "wanted"), ASKED, ids=[wanted for _, _, wanted in ASKED])
def test_absent_fields_have_defaults(ask: Callable[..., Any], value: object, wanted: str) -> None:
    for empty in ({}, {"x": None}):
        assert read(empty, ask) == (None, [])
        assert read(empty, lambda fields: ask(fields, default=value)) == (value, [])
        assert read(empty, lambda fields: ask(fields, required=True)) == (None, [f"at.x: is missing: write {wanted}"])
    assert read({"x": value}, lambda fields: ask(fields, required=True)) == (value, [])


@pytest.mark.parametrize(("ask", "value", "wanted"), ASKED, ids=[wanted for _, _, wanted in ASKED])
def test_non_mapping_has_no_missing_fields(ask: Callable[..., Any], value: object, wanted: str) -> None:
    assert read([], lambda fields: ask(fields, required=True)) == (None, ["at: must be a mapping with x, not a list"])


@pytest.mark.parametrize(("ask", "value", "wanted"), ASKED, ids=[wanted for _, _, wanted in ASKED])
def test_wrong_fields_have_defaults(ask: Callable[..., Any], value: object, wanted: str) -> None:
    found, (_,) = read({"x": ["wrong"]}, lambda fields: ask(fields, default=value))
    assert found == value
    found, (_,) = read({"x": ["wrong"]}, lambda fields: ask(fields, required=True))
    assert found is None


@pytest.mark.parametrize("value", [0.04, 3601, 0, -1, True, "1", float("inf")])
def test_seconds_within_bounds(value: object) -> None:
    found, (message,) = read({"x": value}, lambda fields: fields.seconds("x", 1, minimum=0.05, maximum=3600))
    assert found == 1
    assert message.startswith("at.x: must be a number of seconds from 0.05 to 3600, not ")
    assert read({"x": 0.05}, lambda fields: fields.seconds("x", 1, minimum=0.05, maximum=3600)) == (0.05, [])


@pytest.mark.parametrize(
    "value",
    [
        *("redis://user:hunter2@host", "redis://user:hunt er2@host", "redis:user:hunter2@host", "redis://hunter2@host"),
        *("redis://host?password=hunter2", b"redis://user:hunter2@host", "host=db password=hunter2 dbname=x"),
    ],
)
def test_passwords_are_redacted(value: object) -> None:
    assert "er2" not in describe(value)
    assert "***" in describe(value)


def test_very_long_number() -> None:
    assert describe(-(10**5000)) == "a number of very many digits"


def test_truncation_does_not_reveal_passwords() -> None:
    assert describe("redis://user:" + "hunter2" * 20 + "@" + "h" * 60) == "'redis://***@" + "h" * 44 + "..."
