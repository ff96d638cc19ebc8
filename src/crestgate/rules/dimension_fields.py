"""Reading of a rule's `dimension` and `identifier`: one of each, or a list of both, part by part.

    dimension: user                 identifier: "42"            a built-in dimension
    dimension: org                  identifier: acme            an attribute of the request, by its name
    dimension: [org, model]         identifier: [acme, "*"]     several together, a composite one; "*" is all of them

An attribute can have any name, so a misspelled built-in dimension looks like one, and its rule would never apply.
What is nearly the name of a built-in one is therefore refused.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from crestgate.core.dimensions import (
    ATTRIBUTE_PATTERN,
    DIMENSION_NAMES,
    DIMENSIONS,
    MAX_PARTS,
    is_attribute_name,
    join_parts,
    parse_dimension,
    split_parts,
)
from crestgate.loader.fields import Fields, describe, join_names
from crestgate.rules.address import subject_address
from crestgate.rules.schema import FieldSpec

__all__ = ["ANY", "check_identifier", "read_dimension", "read_identifier"]

ANY = "*"
NEARLY = 0.85
"""Similarity from which a name is taken for a misspelled one: `usr`, `users`, `clients`."""
MAX_IDENTIFIER_BYTES = 1024


def read_dimension(fields: Fields, spec: FieldSpec) -> str:
    """The name of a dimension; of a list the names joined by commas. Empty if it is invalid."""
    value = fields.values.get(spec.name)
    if not isinstance(value, list | tuple):
        return _name(fields, spec.name, value, fields)
    if not 1 <= len(value) <= MAX_PARTS:
        fields.report(spec.name, f"must name 1 to {MAX_PARTS} dimensions, not {len(value)}")
        return ""
    names = []
    for position, item in enumerate(value):
        field = f"{spec.name}[{position}]"
        name = _name(fields, field, item, Fields({field: item}, fields.at, fields.problems, [field]))
        if name == "global" and len(value) > 1:
            fields.report(field, "global counts all callers together, and adds nothing to others: leave it out")
        elif name in names:
            fields.report(field, f"names {name} twice: name each dimension once")
        names.append(name)
    return join_parts(names) if all(names) else ""


def _name(fields: Fields, field: str, value: Any, choices: Fields) -> str:
    """The name of one dimension. `choices` has the value under the name of the field, for its error message."""
    if isinstance(value, str):
        builtin = parse_dimension(value)
        if builtin in DIMENSION_NAMES:
            return builtin
        name = value.lower()
        if is_attribute_name(name) and not get_close_matches(name, DIMENSION_NAMES, n=1, cutoff=NEARLY):
            return name
        if not get_close_matches(name, DIMENSION_NAMES, n=1):
            fields.report(
                field,
                f"must be one of {join_names(DIMENSION_NAMES)}, or the name of an attribute ({ATTRIBUTE_PATTERN}), not "
                f"{describe(value)}",
            )
            return ""
    choices.choice(field, DIMENSION_NAMES, required=True)
    return ""


def read_identifier(fields: Fields, spec: FieldSpec) -> str | list[str]:
    """What is written: one identifier, or a list of them."""
    value = fields.values.get(spec.name)
    if not isinstance(value, list | tuple):
        text: str = fields.text(spec.name, spec.default, maximum=MAX_IDENTIFIER_BYTES)
        return text
    names = [f"{spec.name}[{position}]" for position in range(len(value))]
    items = Fields(dict(zip(names, value, strict=True)), fields.at, fields.problems, names)
    return [items.text(name, ANY, required=True, maximum=MAX_IDENTIFIER_BYTES) for name in names]


def check_identifier(fields: Fields, given: str | list[str], dimension: str) -> str:
    """The identifier of a rule of this dimension, as `Rule` has it."""
    names = split_parts(dimension)
    if len(names) == 1:
        if isinstance(given, list) and len(given) != 1:
            fields.report("identifier", f"must be one identifier, because {dimension or 'its dimension'} is one")
            return ANY
        return _identifier(fields, "identifier", given[0] if isinstance(given, list) else given, dimension)
    if given == ANY:
        return ANY
    if isinstance(given, str) or len(given) != len(names):
        what = describe(given) if isinstance(given, str) else f"a list of {len(given)}"
        fields.report(
            "identifier",
            f"must be '*', or a list with an identifier or '*' for each of {join_names(names)}, not {what}",
        )
        return ANY
    parts = [
        _identifier(fields, f"identifier[{position}]", part, name)
        for position, (part, name) in enumerate(zip(given, names, strict=True))
    ]
    return ANY if all(part == ANY for part in parts) else join_parts(parts)


def _identifier(fields: Fields, field: str, identifier: str, dimension: str) -> str:
    instead = next((one.no_identifier for one in DIMENSIONS if one.name == dimension), None)
    if identifier != ANY and instead is not None:
        fields.report(field, f"a rule of dimension {dimension} has none: leave it out, {instead}")
    if dimension != "ip":
        return identifier
    address = subject_address(identifier)
    if "/" in address and not (":" in address and address.endswith("/64")):
        fields.report(field, f"must be one address, not the network {identifier!r}: write '*' for every address")
    return address
