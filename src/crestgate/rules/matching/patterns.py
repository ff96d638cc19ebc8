"""Endpoint patterns: which paths a rule is for.

    *                   every path, every API name, and requests without any
    /api/v1/orders      this path
    /users/*/orders     `*` matches one segment; so does `{id}`, with a name
    /api/v1/*           this path and all below it: a final `*` (or `**`) matches the rest, which may be empty
    getUsers            not a path but the name of an API, matched literally
    =reports/*          the same, for names that look like a path or pattern: all after the `=` is the name

Two spellings of one pattern (`/users/*/orders`, `/users/{id}/orders/`) are one: `key` is the spelling that slots and
counters use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from crestgate.errors import ConfigError
from crestgate.rules.matching.paths import normalise

__all__ = ["ANY_PATH", "ANY_SEGMENT", "TRAILING_WILDCARD", "Pattern", "name_pattern", "parse_pattern"]

ANY_PATH = "*"
ANY_SEGMENT = "{}"
TRAILING_WILDCARD = "*"
LITERAL = "="
_NAMED = re.compile(r"\{[^{}/]*\}")
_ENCODED_WILDCARD = re.compile(r"(?i)%(?:25)*(?:2A|7B|7D)")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A parsed pattern."""

    key: str
    segments: tuple[str, ...] | None
    """The text of each segment, or `ANY_SEGMENT` for any; None if it is not a path but `*` or a name."""
    rest: bool = False
    """Whether it also matches all paths below: a final `*`."""


@lru_cache(maxsize=4096)
def parse_pattern(text: str) -> Pattern:
    """Parse a pattern; ConfigError if it is invalid.

    >>> parse_pattern("/users/{id}/orders/").key, parse_pattern("/users/*").key
    ('/users/{}/orders', '/users/*')
    """
    if text in (ANY_PATH, "**"):
        return Pattern(ANY_PATH, None)
    if text.startswith(LITERAL) and len(text) > 1:
        return Pattern(name_pattern(text[1:]), None)
    path = normalise(text)
    if not text or path[0] != "/":
        if not text or any(character in text for character in "*{}="):
            raise ConfigError(
                f"{text!r} is not a pattern: a path begins with '/', as in '/api/v1/*'; '*' alone is every path"
            )
        return Pattern(text, None)
    if any(character in text for character in "?#"):
        raise ConfigError(f"{text!r} has a query or a fragment: a pattern is only a path, as in '/api/v1/*'")
    if _ENCODED_WILDCARD.search(text):
        raise ConfigError(f"{text!r} has an encoded '*', '{{' or '}}', which are not allowed inside of a segment")
    segments = path[1:].split("/")
    rest = segments[-1] in ("*", "**")
    if rest:
        segments.pop()
    found = [ANY_SEGMENT if part == "*" or _NAMED.fullmatch(part) else part for part in segments if part]
    for part in found:
        if part != ANY_SEGMENT and any(character in part for character in "*{}"):
            where = "'**' is only allowed at the end" if part == "**" else "'*' and '{name}' must be a whole segment"
            raise ConfigError(f"{text!r} has the segment {part!r}: {where}, as in '/users/{{id}}/*'")
    return Pattern("/" + "/".join([*found, TRAILING_WILDCARD] if rest else found), tuple(found), rest)


def name_pattern(name: str) -> str:
    """The pattern of exactly this name, and its key: the name, after a `=` if it would be read as something else.

    >>> name_pattern("getUsers"), name_pattern("reports/*")
    ('getUsers', '=reports/*')
    """
    plain = name and not any(character in name for character in "/*{}=") and normalise(name)[0] != "/"
    return name if plain else LITERAL + name
