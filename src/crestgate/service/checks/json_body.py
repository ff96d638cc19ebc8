# mypyc: compile
"""JSON bodies: decoding with errors that name the field, duplicate keys, and nesting depth.

An object with a key twice is refused, since two readers of one body may each use another value. msgspec keeps the last
value and does not report it. To look at every key in Python would cost a check more than to decode it, so first the
colons are counted. A body has one for each key, and those inside strings. What was decoded is encoded again, without
absent values: that has one for each different key, and those inside the same strings. If both counts are equal, no key
was there twice. Only a body with more is read key by key: one with a duplicate, or with values that are the same as
leaving them out, such as `"method": null`.

A colon inside a string may be written `\\u003a`, which would make up for one too many: such bodies are read, too, and
each of their keys may be redundant. A body with more than MAX_REDUNDANT_KEYS is refused unread, so that reading costs
no more than what the body asks for.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from crestgate.errors import InvalidRequestError

__all__ = [
    "MAX_DEPTH",
    "MAX_OBJECTS",
    "MAX_REDUNDANT_KEYS",
    "DuplicateKeyError",
    "decode_json",
    "is_too_deep",
    "join_path",
    "redundant_keys",
    "refuse_duplicates",
]

MAX_OBJECTS: Final = 24_000
"""In one body. 1,000 checks with 10,000 counters are 11,001 objects, and keys may have braces in them, too."""
MAX_REDUNDANT_KEYS: Final = 20_000
"""A batch of 1,000 checks with every field written out as null has fewer."""
MAX_DEPTH: Final = 32

_BACKSLASH: Final = ord("\\")  # a number is found several times faster than a text of one byte
_encode: Final = msgspec.json.Encoder().encode
_BRACKETS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)
_AT: Final = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(.*)`$")
_EMPTY: Final = "Expected `str` of length >= 1"
_EXPECTED: Final = re.compile(r"^Expected `([a-z| ]+)`, got `([a-z]+)`$")
_SOME_ENTRY: Final = "[...]"
_STEPS: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_KINDS: Final[dict[str, type]] = {
    "str": str,
    "int": int,
    "float": float,
    "array": list,
    "object": dict,
    "bool": bool,
    "null": type(None),
}
"""What msgspec reads without a type, by its names of JSON's types."""
_TYPES: Final = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "array": "a list",
    "object": "an object",
    "bool": "true or false",
}


class DuplicateKeyError(ValueError):
    """A key is there twice in one object: its name."""


def decode_json(decoder: Any, body: bytes, forms: str) -> Any:
    """A decoded body; InvalidRequestError if it cannot be. `forms` lists the valid fields, for the error message."""
    if len(body) > MAX_OBJECTS and body.count(b"{") > MAX_OBJECTS:
        raise InvalidRequestError("", f"the body has more than {MAX_OBJECTS:,} objects: send less at once")
    try:
        value = decoder.decode(body)
        redundant = redundant_keys(body, value)
        if redundant:
            if redundant > MAX_REDUNDANT_KEYS:
                raise InvalidRequestError(
                    "",
                    f"the body has more than {MAX_REDUNDANT_KEYS:,} duplicate or null keys: omit them, and do not "
                    "escape colons",
                )
            refuse_duplicates(body)
        return value
    except DuplicateKeyError as duplicate:  # not the same name as below: compiled code takes it for one type
        raise InvalidRequestError(str(duplicate), "is written twice in one object: write it once") from None
    except msgspec.ValidationError as error:
        raise _validation_error(str(error), forms, body) from None
    except msgspec.DecodeError as error:
        raise InvalidRequestError(
            "", f"the body is not JSON: {error}" if body else "the body is empty: send JSON"
        ) from None
    except UnicodeDecodeError:
        raise InvalidRequestError("", "the body is not JSON: it is not UTF-8") from None
    except RecursionError:
        raise InvalidRequestError("", "the body is nested too deeply") from None


def _validation_error(text: str, forms: str, body: bytes) -> InvalidRequestError:
    """An error of msgspec, as a field and a message."""
    match = _AT.search(text)
    at = match[1] if match is not None else ""
    message = text if match is None else text[: match.start()]
    if at.endswith(_SOME_ENTRY):
        at = _entry_path(body, at.removesuffix(_SOME_ENTRY), message)
    for pattern, reason in ((_UNKNOWN, f"is unknown: {forms}"), (_MISSING, "is missing")):
        named = pattern.match(message)
        if named is not None:
            return InvalidRequestError(join_path(at, named[1]), reason)
    if message == _EMPTY:
        return InvalidRequestError(at, "must not be empty: leave it out when it is not known")
    expected = _EXPECTED.match(message)
    if expected is None:
        return InvalidRequestError(at, message[0].lower() + message[1:].replace("`", ""))
    expected_types = [_TYPES.get(kind, kind) for kind in expected[1].split(" | ") if kind != "null"]
    given = (
        "a fraction"
        if expected_types == [_TYPES["int"]] and expected[2] == "float"
        else _TYPES.get(expected[2], expected[2])
    )
    hint = ': write "42", in quotes' if expected_types == [_TYPES["str"]] and expected[2] == "int" else ""
    return InvalidRequestError(at, f"must be {' or '.join(expected_types)}, not {given}{hint}")


def _entry_path(body: bytes, at: str, message: str) -> str:
    """The path to the entry of a mapping that msgspec does not name: the first with a value of the type in the message.
    As far as that can be told; else the path to the mapping."""
    expected = _EXPECTED.match(message)
    if expected is None and message != _EMPTY:
        return at
    given = str if expected is None else _KINDS.get(expected[2])
    try:
        value = msgspec.json.decode(body)
        for index, name in _STEPS.findall(at):
            value = value[int(index)] if index else value[name]
        for key, one in value.items():
            if type(one) is given and (expected is not None or not one):
                return join_path(at, key)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
        # there is more wrong with it, such as a key twice
        pass
    return at


def join_path(at: str, name: str) -> str:
    """The path to a field of an object."""
    return f"{at}.{name}" if at and name else at or name


def redundant_keys(body: bytes, decoded: Any) -> int:
    """How many keys of a body may be duplicates, by what was decoded from it. Structs in it must have `omit_defaults`.

    >>> class Point(msgspec.Struct, omit_defaults=True):
    ...     x: int = 0
    ...     y: int = 0
    >>> [redundant_keys(body, msgspec.json.decode(body, type=Point)) for body in (b'{"x": 1}', b'{"x": 1, "x": 2}')]
    [0, 1]
    """
    if _BACKSLASH in body and (b"\\u003a" in body or b"\\u003A" in body):
        return body.count(b":")
    return body.count(b":") - _encode(decoded).count(b":")


def refuse_duplicates(body: bytes) -> None:
    """DuplicateKeyError if an object in this JSON has a key twice.

    >>> refuse_duplicates(b'{"checks": [{"key": "a"}, {"key": "b", "key": "c"}]}')
    Traceback (most recent call last):
    crestgate.service.checks.json_body.DuplicateKeyError: key
    """
    json.loads(body, object_pairs_hook=_check_pairs, parse_int=_ignore, parse_float=_ignore)


def _check_pairs(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise DuplicateKeyError(name)
        names.add(name)


def _ignore(_: str) -> None:
    """Numbers do not matter, nor how many digits they have."""


def is_too_deep(body: bytes) -> bool:
    """Whether a body is nested deeper than MAX_DEPTH, whatever else may be wrong with it.

    >>> is_too_deep(b"[" * 32 + b"]" * 32), is_too_deep(b'{"a":' * 33), is_too_deep(b'["' + b"[" * 99 + b'"]')
    (False, True, False)
    """
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for token in _BRACKETS.finditer(body):
        mark = token[0][:1]
        if mark in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif mark in b"]}":
            depth -= 1
    return False
