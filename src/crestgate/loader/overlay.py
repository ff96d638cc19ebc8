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
    """Its name in the environment: CRESTGATE_PLANS__GOLD."""
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
        path = _match_case(data, variable.path)
        if path is not None:
            data = _with(data, path, variable.value)
            names[".".join(path)] = variable.name
    return replace(document, data=data, variables=names)


def _match_case(data: Any, path: tuple[str, ...]) -> tuple[str, ...] | None:
    """The path in the spelling of the file: the names of variables are upper-case. None if the file has something other
    than a mapping there, which is reported separately."""
    keys = []
    for part in path:
        if data is not None and not isinstance(data, Mapping):
            return None
        key = part
        if data and part not in data:
            key = next((other for other in data if other.lower() == part.lower()), part)
        keys.append(key)
        data = data.get(key) if data else None
    return tuple(keys)


def _with(data: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    mapping = data or {}
    return {**mapping, path[0]: _with(mapping.get(path[0]), path[1:], value)}
