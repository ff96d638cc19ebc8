"""Parser for RFC 9651 lists; returns integers only.

`RateLimit` is such a list: items with parameters, `"per-user";r=0;t=17`. A list with a syntax error is ignored as a
whole, as the RFC requires. So the whole syntax is recognised, including inner lists and dates, but only integers are
returned; other values are None and are not decoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["MAX_LENGTH", "read_list"]

MAX_LENGTH: Final = 8192
"""Maximum characters of a list; longer ones are ignored."""
Parameters = Mapping[str, int | None]
_ITEM = re.compile(
    r"""(?P<integer>-?[0-9]{1,15}(?![0-9.]))
      | -?[0-9]{1,12}\.[0-9]{1,3}                             # a decimal
      | "(?:[\ !#-\[\]-~]|\\["\\])*"                          # a string
      | [A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*                # a token
      | :[A-Za-z0-9+/]*={0,2}:                                # bytes
      | \?[01]                                                # true or false
      | @-?[0-9]{1,15}(?![0-9.])                              # a date
      | %"(?:[\ !#$&-~]|%[0-9a-f]{2})*"                       # a display string
    """,
    re.VERBOSE,
)
_KEY = re.compile(r"; *([a-z*][a-z0-9_.*-]*)(=)?")
_COMMA = re.compile(r"[ \t]*,[ \t]*")
_SPACES = re.compile(r" *")
_END = re.compile(r"[ \t]*\Z")


class _MalformedError(Exception):
    """The text is not a list."""


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
    if comma is None or comma.end() == len(text):  # a trailing comma is an error
        raise _MalformedError
    return comma.end()


def _member(text: str, at: int) -> tuple[Parameters, int]:
    """An item or an inner list."""
    if not text.startswith("(", at):
        return _parameters(text, _value(text, at)[1])
    at += 1
    separated = True
    while True:
        spaces = _SPACES.match(text, at)
        assert spaces is not None
        separated = separated or spaces.end() > at
        at = spaces.end()
        if text.startswith(")", at):
            return _parameters(text, at + 1)
        if not separated:
            raise _MalformedError
        _, at = _parameters(text, _value(text, at)[1])
        separated = False


def _parameters(text: str, at: int) -> tuple[Parameters, int]:
    parameters: dict[str, int | None] = {}
    while key := _KEY.match(text, at):
        at = key.end()
        value = None
        if key[2]:
            value, at = _value(text, at)
        parameters[key[1]] = value
    if text.startswith(";", at):
        raise _MalformedError
    return parameters, at


def _value(text: str, at: int) -> tuple[int | None, int]:
    """The value if it is an integer, and where it ends."""
    item = _ITEM.match(text, at)
    if item is None:
        raise _MalformedError
    return (None if item["integer"] is None else int(item["integer"])), item.end()
