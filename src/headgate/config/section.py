"""A section of the settings: a mapping whose fields are those of a value, by the same names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from headgate.reading.fields import Fields

__all__ = ["names_of", "section"]


def section(fields: Fields, name: str, known: Iterable[str]) -> Fields:
    """The fields of a section; without any where it is not there."""
    data = fields.values[name] if fields.given(name) else {}
    return Fields(data, fields.way(name), fields.problems, known)


def names_of(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a value, which are those of its section."""
    return tuple(field.name for field in dataclasses.fields(kind))
