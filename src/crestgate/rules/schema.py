"""Declared fields: the reader, its error messages and the JSON schema for OpenAPI come from one declaration.

A declaration has the kind of a field, its bounds, its default and its description. `read` reports all errors, as
`loader.fields` does; `request_schema` is the schema of requests, `response_schema` that of responses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from crestgate.loader.fields import MAX_INTEGER, Fields
from crestgate.rules.timestamps import read_timestamp

__all__ = [
    "DATA",
    "SECONDS",
    "TIMESTAMP",
    "FieldSpec",
    "Kind",
    "boolean",
    "choice",
    "request_schema",
    "response_schema",
    "text",
    "text_or_list",
    "whole",
]

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field."""

    name: str
    kind: Kind
    description: str = ""
    required: bool = False
    default: Any = None
    """Its value when it is omitted."""
    nullable: bool = False
    """Whether it may be null in a response."""
    computed: bool = False
    """Whether Crestgate sets it: in requests it is ignored."""

    def read(self, fields: Fields) -> Any:
        return self.kind.read(fields, self)


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is read, and its JSON schema in requests and (if it differs) in responses."""

    read: Callable[[Fields, FieldSpec], Any]
    written: Callable[[], Schema]
    shown: Schema | None = field(default=None)


def text(max_bytes: int = 1024) -> Kind:
    """Text of at least one character."""

    def read(fields: Fields, spec: FieldSpec) -> Any:
        return fields.text(spec.name, spec.default, required=spec.required, maximum=max_bytes)

    return Kind(read, lambda: {"type": "string"})


def text_or_list(read: Callable[[Fields, FieldSpec], Any], max_items: int) -> Kind:
    """Text, or a list of texts."""
    items: Schema = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": max_items}
    return Kind(read, lambda: {"anyOf": [{"type": "string"}, items]})


def boolean() -> Kind:
    """True or false."""

    def read(fields: Fields, spec: FieldSpec) -> Any:
        return fields.boolean(spec.name, spec.default)

    return Kind(read, lambda: {"type": "boolean"})


def whole(minimum: int = 0, maximum: int = MAX_INTEGER) -> Kind:
    """A whole number."""

    def read(fields: Fields, spec: FieldSpec) -> Any:
        return fields.integer(spec.name, spec.default, required=spec.required, minimum=minimum, maximum=maximum)

    bounds = {"minimum": minimum} if maximum == MAX_INTEGER else {"minimum": minimum, "maximum": maximum}
    return Kind(read, lambda: {"type": "integer", **bounds})


def choice(choices: Iterable[str], aliases: Mapping[str, str] | None = None, *, closed: bool = True) -> Kind:
    """One of a few words, in any case. Unless `closed`, programs can add others, and a response may have any."""

    def read(fields: Fields, spec: FieldSpec) -> Any:
        value = fields.values.get(spec.name)
        if aliases is not None and isinstance(value, str) and value.lower() in aliases:
            return aliases[value.lower()]
        return fields.choice(spec.name, choices, spec.default, required=spec.required)

    def written() -> Schema:
        return {"type": "string", "enum": [*choices, *(aliases or ())]}

    return Kind(read, written, {"type": "string", "enum": [*choices]} if closed else {"type": "string"})


def _read_seconds(fields: Fields, spec: FieldSpec) -> Any:
    return fields.seconds(spec.name, spec.default, required=spec.required)


def _read_timestamp(fields: Fields, spec: FieldSpec) -> Any:
    return read_timestamp(fields, spec.name)


def _read_data(fields: Fields, spec: FieldSpec) -> Any:
    value = fields.values.get(spec.name)
    if value is not None and not isinstance(value, Mapping):
        fields.report(spec.name, "is set by Crestgate: leave it out")
        return None
    return value


SECONDS = Kind(_read_seconds, lambda: {"type": "number", "exclusiveMinimum": 0})
TIMESTAMP = Kind(
    _read_timestamp,
    lambda: {"anyOf": [{"type": "string"}, {"type": "number"}]},
    {"type": "string", "format": "date-time"},
)
"""Microseconds since the epoch; RFC 3339 in requests and responses."""
DATA = Kind(_read_data, lambda: {"type": "object", "additionalProperties": True})


def request_schema(specs: Iterable[FieldSpec], description: str, example: Mapping[str, Any] | None = None) -> Schema:
    """The JSON schema of a request. A field that is not required may also be null."""
    properties: Schema = {}
    for spec in specs:
        schema = {} if spec.computed else spec.kind.written()
        if not spec.required and not spec.computed:
            schema = {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}], "default": None}
        properties[spec.name] = _described(schema, spec)
    return _object(properties, [spec.name for spec in specs if spec.required], description, example)


def response_schema(specs: Iterable[FieldSpec], description: str, optional: Iterable[str] = ()) -> Schema:
    """The JSON schema of a response. It always has all fields, except the `optional` ones."""
    properties: Schema = {}
    omitted = set(optional)
    for spec in specs:
        schema = spec.kind.written() if spec.kind.shown is None else spec.kind.shown
        if spec.nullable:
            schema = {"anyOf": [schema, {"type": "null"}]}
        properties[spec.name] = _described(schema, spec)
    return _object(properties, [name for name in properties if name not in omitted], description, None)


def _described(schema: Schema, spec: FieldSpec) -> Schema:
    return {**schema, "description": spec.description} if spec.description else schema


def _object(properties: Schema, required: list[str], description: str, example: Mapping[str, Any] | None) -> Schema:
    schema: Schema = {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return schema if example is None else {**schema, "examples": [dict(example)]}
