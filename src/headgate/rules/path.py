"""A request's path in the one spelling that rules are matched against, so that another spelling evades none.

What is done, in this order, and why:

    scheme://host   dropped: a request line may carry the whole URL
    ? and #         cut: they end the path
    %41             decoded, until nothing is left to decode (at most `ROUNDS` times): `%2F` becomes a `/`, as it does
                    in many servers, and what is spelled twice (`%252F`) reaches where it is decoded twice
    NUL             cut: where strings end with it, what follows is not seen
    ;params         dropped from each segment: many servers do
    // and .        dropped; `..` drops the segment before it, and nothing at the top
    trailing /      dropped: frameworks serve both, or redirect

Not every server does all of that: to some, `..` or `;x` is the value of a parameter like any other. So a path that has
anything to be dropped or decoded is matched in three readings (`readings`): normalised, decoded once, and as it came,
and the rules of all of them apply. Counters know the normalised one.

Upper and lower case stay apart, as they do in URLs: whoever routes regardless of case writes a rule for each spelling
that is served. What does not begin with `/` is also the name of an API, and taken literally.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

__all__ = ["LONGEST_PATH", "is_clean", "normalise", "readings", "shortened"]

LONGEST_PATH: Final = 8192
"""Characters of a path that a service takes: hardly a server lets longer ones through."""
ROUNDS: Final = 10
_clean = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/%;?#\0]+)+").fullmatch
_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")
_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


def normalise(path: str) -> str:
    """The path in its one spelling.

    >>> normalise("/api//v1/./orders/../%6frders/")
    '/api/v1/orders'
    >>> normalise("getUsers")
    'getUsers'
    """
    if is_clean(path):
        return path
    if "/" not in path and "/" not in _decoded(path):
        return path if path else "/"
    segments: list[str] = []
    for part in _decoded(_bare(path)).partition("\0")[0].split("/"):
        segment = part.partition(";")[0]
        if segment == "..":
            if segments:
                segments.pop()
        elif segment and segment != ".":
            segments.append(segment)
    return "/" + "/".join(segments)


def shortened(path: str) -> str:
    """A path that a service takes. Callers choose how long theirs are, and none is free of rules by that, or in error:
    of one that is too long the one spelling is told, as far as it goes. No pattern is as long as that.

    >>> shortened("/orders"), shortened("/" * 10_000 + "orders"), len(shortened("/" + "a" * 10_000))
    ('/orders', '/orders', 8192)
    """
    return path if len(path) <= LONGEST_PATH else normalise(path)[:LONGEST_PATH]


def is_clean(path: str) -> bool:
    """Whether a path can only be read in one way, as it is."""
    return _clean(path) is not None


def readings(path: str) -> list[str]:
    """Every path that a server may take this one for, the normalised one first; none for what is only a name.

    What one server drops or decodes, another passes on as the value of a parameter. A rule for either is to apply.

    >>> readings("/search/%2e%2e/results")
    ['/results', '/search/../results', '/search/%2e%2e/results']
    """
    if is_clean(path):
        return [path]
    found = [normalise(path)]
    if found[0][0] != "/":
        return []
    bare = _bare(path)
    for spelling in (unquote(bare, "utf-8", "surrogateescape"), bare):
        reading = "/" + "/".join([segment for segment in spelling.split("/") if segment])
        if reading not in found:
            found.append(reading)
    return found


def _bare(path: str) -> str:
    """Without what is no path: a scheme and a host before it, a query or a fragment behind."""
    absolute = _ABSOLUTE.match(path)
    if absolute is not None:
        path = path[absolute.end() :]
    return re.split(r"[?#]", path, maxsplit=1)[0]


def _decoded(path: str) -> str:
    for _ in range(ROUNDS):
        if _ESCAPE.search(path) is None:
            break
        path = unquote(path, "utf-8", "surrogateescape")
    return path
