"""A request's path in the one spelling that rules are matched against, so that another spelling evades none.

What is done, in this order, and why:

    scheme://host   dropped: a request line may carry the whole URL
    ? and #         cut: they end the path
    %41             decoded, until nothing is left to decode (at most `ROUNDS` times): `%2F` becomes a `/`, as it does
                    in the servers behind; who spells twice (`%252F`) reaches, where it is decoded once, only what
                    nobody meant by that name, and where it is decoded twice, what the rule is for
    NUL             cut: where strings end with it, what follows is not seen
    ;params         dropped from each segment: many servers do
    // and .        dropped; `..` drops the segment before it, and nothing at the top
    trailing /      dropped: frameworks serve both, or redirect

Upper and lower case stay apart, as they do in URLs: whoever routes regardless of case writes a rule for each spelling
that is served. What has no `/` in it, spelled out or encoded, is not a path but the name of an API, and is taken
literally.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

__all__ = ["normalise"]

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
    if _clean(path) is not None:
        return path
    if "/" not in path and "/" not in _decoded(path):
        return path if path else "/"
    absolute = _ABSOLUTE.match(path)
    if absolute is not None:
        path = path[absolute.end() :]
    path = re.split(r"[?#]", path, maxsplit=1)[0]
    segments: list[str] = []
    for part in _decoded(path).partition("\0")[0].split("/"):
        segment = part.partition(";")[0]
        if segment == "..":
            if segments:
                segments.pop()
        elif segment and segment != ".":
            segments.append(segment)
    return "/" + "/".join(segments)


def _decoded(path: str) -> str:
    for _ in range(ROUNDS):
        if _ESCAPE.search(path) is None:
            break
        path = unquote(path, "utf-8", "surrogateescape")
    return path
