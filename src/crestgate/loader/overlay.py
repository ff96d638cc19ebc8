"""Overlay of environment variables on a document, field by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from crestgate.loader.document import Document

__all__ = ["Variable", "overlay"]


class Variable(NamedTuple):
    """One variable that sets one field."""

    name: str
    """As the environment has it: CRESTGATE_PLANS__GOLD."""
    path: tuple[str, ...]
    """The field: plans, gold."""
    value: Any


def overlay(document: Document, variables: Iterable[Variable]) -> Document:
    """The document with the fields that the variables set; a problem in one of them names the variable.

    >>> variable = Variable("CRESTGATE_SERVER__GRPC", ("server", "grpc"), "b:2")
    >>> overlay(Document("crestgate.yaml", {"server": {"http": "a:1"}}), [variable]).data
    {'server': {'http': 'a:1', 'grpc': 'b:2'}}
    """
    data, names = document.data, dict(document.variables)
    for variable in variables:
        spelled = _spelled(data, variable.path)
        if spelled is not None:
            data = _with(data, spelled, variable.value)
            names[".".join(spelled)] = variable.name
    return replace(document, data=data, variables=names)


def _spelled(data: Any, path: tuple[str, ...]) -> tuple[str, ...] | None:
    """The path as the file spells it: a variable's name is upper case. None if the file has something other than a
    mapping there, which is a problem of its own."""
    spelled = []
    for part in path:
        if data is not None and not isinstance(data, Mapping):
            return None
        same = part
        if data and part not in data:
            same = next((key for key in data if key.lower() == part.lower()), part)
        spelled.append(same)
        data = data.get(same) if data else None
    return tuple(spelled)


def _with(data: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    mapping = data or {}
    return {**mapping, path[0]: _with(mapping.get(path[0]), path[1:], value)}
