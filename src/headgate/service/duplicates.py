"""JSON objects that have a key twice: refused, since two readers of one body may each take another value.

msgspec keeps the last value and says nothing. To look at every key in Python would cost a check more than to decode it,
so first the colons are counted. A body has one for each key, and those inside strings. What was decoded is encoded
again, without what is absent: that has one for each different key, and those inside the same strings. If both counts
are equal, no key was there twice. Only a body with more is read key by key: one with a duplicate, or with values that
are the same as leaving them out, such as `"method": null`.

A colon inside a string may be written `\\u003a`, which would make up for one too many: such bodies are read, too, and
each of their keys may be redundant. A body with more than MAX_REDUNDANT_KEYS is refused unread, so that reading costs
no more than what the body asks for.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

__all__ = ["MAX_REDUNDANT_KEYS", "DuplicateKey", "redundant_keys", "refuse_duplicates"]

MAX_REDUNDANT_KEYS = 20_000
"""A batch of 1,000 checks with every field written out as null has fewer."""

_BACKSLASH: Final = ord("\\")  # a number is found several times faster than a text of one byte
_encode: Final = msgspec.json.Encoder().encode


class DuplicateKey(ValueError):  # noqa: N818 - says what it is
    """A key is there twice in one object: its name."""


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
    """DuplicateKey if an object in this JSON has a key twice.

    >>> refuse_duplicates(b'{"checks": [{"key": "a"}, {"key": "b", "key": "c"}]}')
    Traceback (most recent call last):
    headgate.service.duplicates.DuplicateKey: key
    """
    json.loads(body, object_pairs_hook=_unique, parse_int=_nothing, parse_float=_nothing)


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise DuplicateKey(name)
        seen.add(name)


def _nothing(_: str) -> None:
    """Numbers do not matter, nor how many digits they have."""
