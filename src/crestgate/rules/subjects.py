# mypyc: compile
"""Subjects of a request: the text that rules are found by for each dimension, and the keys of counters.

    user:42                     a dimension's name and the request's value of it; an address in one spelling
    org:acme                    the same of an attribute
    model:large|org:acme        of several dimensions together: see composites.py

All values may come from a stranger, so they are validated here and bounded: in bytes, and attributes in number.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from operator import attrgetter
from typing import Any, Final

from crestgate.core.context import ContextFields
from crestgate.core.dimensions import (
    ATTRIBUTE_PATTERN,
    IDENTIFIED,
    MAX_ATTRIBUTES,
    dimension_order,
    is_attribute_name,
    split_parts,
)
from crestgate.errors import input_error
from crestgate.rules.address import subject_address
from crestgate.rules.compiled_rule import CompiledRule
from crestgate.rules.composites import part_subject

__all__ = [
    "MAX_VALUE_BYTES",
    "attribute_subjects",
    "check_text",
    "counter_key",
    "identified",
    "subject_key",
    "subjects_of",
]

MAX_VALUE_BYTES: Final = 1024
"""Of an identifier."""
MAX_KEY_BYTES: Final = 1024
"""Of a counter's key: a longer one (a long path, mostly) is replaced by its digest."""
MAX_SHOWN: Final = 64
"""Characters of an invalid name in a message."""

_IDENTIFIED: Final = [
    (1 << number, one.attribute or "", one.name, one.name + ":") for number, one in enumerate(IDENTIFIED)
]
_identifiers: Final = attrgetter(*[one.attribute or "" for one in IDENTIFIED])


def identified(context: ContextFields) -> tuple[dict[str, str], int]:
    """The subjects that a request itself names, by dimension, and a bit for each of them."""
    values: tuple[object, ...] = _identifiers(context)  # of any type at runtime
    found: dict[str, str] = {}
    present = 0
    for i in range(len(_IDENTIFIED)):
        value = values[i]
        if value is not None:  # most are: no tuple is made or taken apart for those
            bit, attribute, dimension, prefix = _IDENTIFIED[i]
            text = check_text(attribute, value)
            found[dimension] = prefix + (subject_address(text) if dimension == "ip" and ":" in text else text)
            present |= bit
    return found, present


def attribute_subjects(attributes: Any, used: Mapping[str, int] | None) -> dict[str, str]:
    """The subjects of a request's attributes, by name; only of those that are `used`, if that is given. Invalid ones
    are a ValueError, whether they are used or not."""
    if not isinstance(attributes, Mapping):
        raise input_error(TypeError, "attributes", f"must be a mapping or None, not {type(attributes).__name__}")
    if len(attributes) > MAX_ATTRIBUTES:
        raise input_error(ValueError, "attributes", f"has {len(attributes)} names; the maximum is {MAX_ATTRIBUTES}")
    found: dict[str, str] = {}
    for name, value in attributes.items():
        known = used is not None and name in used  # the names in rules are valid
        if not known and not (isinstance(name, str) and is_attribute_name(name)):
            shown = repr(name[:MAX_SHOWN]) if isinstance(name, str) else type(name).__name__
            raise input_error(
                ValueError,
                "attributes",
                f"has the name {shown}: an attribute's name matches {ATTRIBUTE_PATTERN} and is not that of a dimension",
            )
        text = check_text(f"attributes.{name}", value)
        if known or used is None:
            found[name] = f"{name}:{text}"
    return found


def subjects_of(dimension: str, identifier: str) -> dict[str, str]:
    """The subject of each dimension that a subject has; several if it is composite."""
    if "," not in dimension:
        names, values = [dimension], [check_text(dimension, identifier)]
    else:
        names = dimension.split(",")
        values = [check_text("identifier", value) for value in split_parts(identifier)]
        if len(names) != len(values):
            raise input_error(ValueError, "identifier", f"must have {len(names)} parts, as {dimension} has")
    return {
        name: f"{name}:{subject_address(value) if name == 'ip' else value}"
        for name, value in zip(names, values, strict=True)
    }


def subject_key(dimension: str, identifier: str) -> str:
    """The key of the counters of a subject, unless it is too long.

    >>> subject_key("user", "42"), subject_key("org,model", "acme,large")
    ('user:42', 'model:large|org:acme')
    """
    subjects = subjects_of(dimension, identifier)
    if len(subjects) == 1:
        return subjects[dimension]
    return "|".join([part_subject(name, subjects[name]) for name in sorted(subjects, key=dimension_order)])


def counter_key(entry: CompiledRule, keys: dict[str, str]) -> str:
    """The key of a rule's counter for a request with these subjects. No subject looks like a digest."""
    try:
        key = keys[entry.dimension]
    except KeyError:  # only where it is composite
        key = _composite_key(entry, keys)
    if entry.dimension == "api" and entry.api is not None:
        key = entry.api
    if len(key) > MAX_KEY_BYTES // 4 and len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        return f"{entry.dimension}#sha256:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return key


def _composite_key(entry: CompiledRule, keys: dict[str, str]) -> str:
    assert entry.parts is not None
    parts = [
        part_subject(name, entry.api if name == "api" and entry.api is not None else keys[name]) for name in entry.parts
    ]
    return "|".join(parts)


def check_text(name: str, value: object) -> str:
    """The text, if it can be an identifier; TypeError or ValueError if not."""
    if not isinstance(value, str):
        raise input_error(TypeError, name, f"must be text or None, not {type(value).__name__}")  # it may be a secret
    if not value and name != "path":
        raise input_error(ValueError, name, "must not be empty: leave it out when it is not known")
    if name != "path" and len(value) > MAX_VALUE_BYTES // 4:
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > MAX_VALUE_BYTES:
            reason = f"is {size} bytes long; the maximum is {MAX_VALUE_BYTES}: use a digest of it"
            raise input_error(ValueError, name, reason)
    return value
