"""Lists of HTTP's structured fields (RFC 9651), as far as somebody reads them who looks for whole numbers.

`RateLimit` is such a list: items with parameters, `"per-user";r=0;t=17`. A list is well formed or it is nothing: what
has one mistake in it is not read at all, since nobody can know what its sender meant. So everything that a list may
have is recognised here, inner lists and dates included, but only whole numbers are told; the rest is None, and what is
encoded in it is not decoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["MAX_LENGTH", "read_list"]

MAX_LENGTH: Final = 8192
"""Characters of a list that is read."""
Parameters = Mapping[str, int | None]
_ITEM = re.compile(
    r"""(?P<whole>-?[0-9]{1,15}(?![0-9.]))
      | -?[0-9]{1,12}\.[0-9]{1,3}                             # a decimal
      | "(?:[\ !#-\[\]-~]|\\["\\])*"                          # a string
      | [A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*                # a token
      | :[A-Za-z0-9+/]*={0,2}:                                # bytes
      | \?[01]                                                # true or false
      | @-?[0-9]{1,15}(?![0-9.])                              # a date
      | %"(?:[\ !#$&-~]|%[0-9a-f]{2})*"                       # text that is shown
    """,
    re.VERBOSE,
)
_KEY = re.compile(r"; *([a-z*][a-z0-9_.*-]*)(=)?")
_COMMA = re.compile(r"[ \t]*,[ \t]*")
_SPACES = re.compile(r" *")
_END = re.compile(r"[ \t]*\Z")


class _MalformedError(Exception):
    """It is no list."""


def read_list(text: str) -> list[Parameters] | None:
    """The parameters of each member of a list, in its order; None when it is malformed.

    >>> read_list('"per-user";r=42;t=17, "per-day";r=0;t=3600;pk=:Zm9v:')
    [{'r': 42, 't': 17}, {'r': 0, 't': 3600, 'pk': None}]
    >>> read_list('"per-user";r=42;t=17,') is None
    True
    """
    if len(text) > MAX_LENGTH:
        return None
    text = text.strip(" ")
    members: list[Parameters] = []
    at = 0
    try:
        while at < len(text):
            parameters, at = _member(text, at)
            members.append(parameters)
            if _END.match(text, at):
                break
            at = _after_comma(text, at)
    except _MalformedError:
        return None
    return members


def _after_comma(text: str, at: int) -> int:
    comma = _COMMA.match(text, at)
    if comma is None or comma.end() == len(text):  # a comma announces a further member
        raise _MalformedError
    return comma.end()


def _member(text: str, at: int) -> tuple[Parameters, int]:
    """An item or an inner list."""
    if not text.startswith("(", at):
        return _parameters(text, _value(text, at)[1])
    at += 1
    apart = True
    while True:
        spaces = _SPACES.match(text, at)
        assert spaces is not None
        apart = apart or spaces.end() > at
        at = spaces.end()
        if text.startswith(")", at):
            return _parameters(text, at + 1)
        if not apart:
            raise _MalformedError
        _, at = _parameters(text, _value(text, at)[1])
        apart = False


def _parameters(text: str, at: int) -> tuple[Parameters, int]:
    found: dict[str, int | None] = {}
    while key := _KEY.match(text, at):
        at = key.end()
        value = None
        if key[2]:
            value, at = _value(text, at)
        found[key[1]] = value
    if text.startswith(";", at):
        raise _MalformedError
    return found, at


def _value(text: str, at: int) -> tuple[int | None, int]:
    """What stands there, if it is a whole number, and where it ends."""
    item = _ITEM.match(text, at)
    if item is None:
        raise _MalformedError
    return (None if item["whole"] is None else int(item["whole"])), item.end()
