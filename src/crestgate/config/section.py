"""Sections of the settings: mappings whose fields are those of a dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from crestgate.loader.fields import Fields

__all__ = ["field_names", "section"]


def section(fields: Fields, name: str, known: Iterable[str]) -> Fields:
    """The fields of a section; none if it is absent."""
    data = fields.values[name] if fields.has(name) else {}
    return Fields(data, fields.path(name), fields.problems, known)


def field_names(kind: type[Any]) -> tuple[str, ...]:
    """Of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(kind))
