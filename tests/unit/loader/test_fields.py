"""Reading fields: missing and invalid values, and values in messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from crestgate.loader.fields import Fields, Problems, describe


def read(data: object, getter: Callable[[Fields], Any]) -> tuple[Any, list[str]]:
    problems = Problems()
    found = getter(Fields(data, "at", problems, ["x"]))
    return found, [str(problem) for problem in problems.entries]


READERS: list[tuple[Callable[..., Any], object, str]] = [
    (lambda fields, **options: fields.text("x", **options), "a", "a string"),
    (lambda fields, **options: fields.integer("x", **options), 5, "a whole number, 0 or more"),
    (lambda fields, **options: fields.seconds("x", **options), 0.5, "a number of seconds"),
    (lambda fields, **options: fields.choice("x", ["a", "b"], **options), "b", "one of a, b"),
]


@pytest.mark.parametrize(("getter", "value", "expected"), READERS, ids=[expected for _, _, expected in READERS])
def test_absent_fields_have_defaults(getter: Callable[..., Any], value: object, expected: str) -> None:
    for empty in ({}, {"x": None}):
        assert read(empty, getter) == (None, [])
        assert read(empty, lambda fields: getter(fields, default=value)) == (value, [])
        assert read(empty, lambda fields: getter(fields, required=True)) == (
            None,
            [f"at.x: is missing: write {expected}"],
        )
    assert read({"x": value}, lambda fields: getter(fields, required=True)) == (value, [])


@pytest.mark.parametrize(("getter", "value", "expected"), READERS, ids=[expected for _, _, expected in READERS])
def test_non_mapping_has_no_missing_fields(getter: Callable[..., Any], value: object, expected: str) -> None:
    assert read([], lambda fields: getter(fields, required=True)) == (
        None,
        ["at: must be a mapping with x, not a list"],
    )


@pytest.mark.parametrize(("getter", "value", "expected"), READERS, ids=[expected for _, _, expected in READERS])
def test_wrong_fields_have_defaults(getter: Callable[..., Any], value: object, expected: str) -> None:
    found, (_,) = read({"x": ["wrong"]}, lambda fields: getter(fields, default=value))
    assert found == value
    found, (_,) = read({"x": ["wrong"]}, lambda fields: getter(fields, required=True))
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
    assert describe(-(10**5000)) == "a very long number"


def test_truncation_does_not_reveal_passwords() -> None:
    assert describe("redis://user:" + "hunter2" * 20 + "@" + "h" * 60) == "'redis://***@" + "h" * 44 + "..."
