# mypyc: compile
"""Path normalisation: rules are matched against one spelling, so that another spelling does not evade them.

Steps, in this order, with reasons:

    scheme://host   dropped: a request line may carry the whole URL
    ? and #         cut: they end the path
    %41             decoded, until nothing is left to decode (at most `ROUNDS` times, long paths `LONG_ROUNDS`): `%2F`
                    becomes a `/`, as it does in many servers, and some servers decode double encoding (`%252F`)
                    twice
    NUL             cut: C strings end with it
    ;params         dropped from each segment: many servers do
    // and .        dropped; `..` drops the segment before it, and nothing at the top
    trailing /      dropped: frameworks serve both, or redirect

Not every server does all of that: to some, `..` or `;x` is the value of a parameter like any other. So a path that has
anything to be dropped or decoded is matched in three readings (`readings`): normalised, decoded once, and unchanged,
and the rules of all of them apply. Counters use the normalised one.

Paths are case-sensitive, as URLs are: for case-insensitive routing, write a rule for each spelling that is served. Text
that does not begin with `/` is also the name of an API, and matched literally.
"""

from __future__ import annotations

import re
from binascii import a2b_qp
from typing import Final

__all__ = ["MAX_PATH", "is_clean", "normalise", "readings", "shorten_path"]

MAX_PATH: Final = 8192
"""Maximum characters of a path in a service: most servers refuse longer ones."""
ROUNDS: Final = 10
LONG_PATH: Final = 1024
"""Characters of a path above which there are fewer rounds of decoding, because each costs more."""
LONG_ROUNDS: Final = 3
"""Rounds of decoding of a longer path: servers decode once or twice."""
_clean = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/%;?#\0]+)+").fullmatch
_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_END: Final = re.compile("[?#]")
_PARAMS: Final = re.compile(";[^/]*")
_SLASHES: Final = re.compile("/{2,}")
_STRAY: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_UNENCODABLE: Final = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")


def normalise(path: str) -> str:
    """The path in its one spelling.

    >>> normalise("/api//v1/./orders/../%6frders/")
    '/api/v1/orders'
    >>> normalise("getUsers")
    'getUsers'
    """
    if is_clean(path):
        return path
    bare = _bare(path)
    return _normalised(path, bare, _decoded(bare, 1))


def shorten_path(path: str) -> str:
    """A path that a service accepts. No path is an error: one that is too long is normalised and truncated. No pattern
    is that long.

    >>> shorten_path("/orders"), shorten_path("/" * 10_000 + "orders"), len(shorten_path("/" + "a" * 10_000))
    ('/orders', '/orders', 8192)
    """
    return path if len(path) <= MAX_PATH else normalise(path)[:MAX_PATH]


def is_clean(path: str) -> bool:
    """Whether a path has only one reading: itself."""
    return _clean(path) is not None


def readings(path: str) -> list[str]:
    """Every path that a server may read this one as, the normalised one first; empty for an API name.

    What one server drops or decodes, another passes on as the value of a parameter. Rules for either must apply.

    >>> readings("/search/%2e%2e/results")
    ['/results', '/search/../results', '/search/%2e%2e/results']
    """
    if is_clean(path):
        return [path]
    bare = _bare(path)
    once = _decoded(bare, 1)
    found = [_normalised(path, bare, once)]
    if found[0][0] != "/":
        return []
    for spelling in (once, bare):
        reading = "/" + (_SLASHES.sub("/", spelling) if "//" in spelling else spelling).strip("/")
        if reading not in found:
            found.append(reading)
    return found


def _normalised(path: str, bare: str, once: str) -> str:
    """The one spelling of a path, from its bare form and from that decoded once."""
    rounds = ROUNDS if len(path) <= LONG_PATH else LONG_ROUNDS
    decoded = _decoded(once, rounds - 1) if once != bare else once
    if "/" not in path and "/" not in (decoded if bare == path else _decoded(path, rounds)):
        return path if path else "/"
    decoded = decoded.partition("\0")[0]
    if ";" in decoded:
        decoded = _PARAMS.sub("", decoded)
    segments: list[str] = []
    for segment in decoded.split("/"):
        if segment == "..":
            if segments:
                segments.pop()
        elif segment and segment != ".":
            segments.append(segment)
    return "/" + "/".join(segments)


def _bare(path: str) -> str:
    """The path without scheme, host, query and fragment."""
    absolute = _ABSOLUTE.match(path)
    if absolute is not None:
        path = path[absolute.end() :]
    return _END.split(path, maxsplit=1)[0]


def _decoded(path: str, rounds: int) -> str:
    """The path decoded up to `rounds` times, until nothing changes; bytes that are not UTF-8 are preserved."""
    if "%" not in path:
        return path
    try:
        data = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate, which no URL can have
        data = _UNENCODABLE.sub("\ufffd", path).encode("utf-8", "surrogateescape")
    for _ in range(rounds):
        further = _unescaped(data)
        if len(further) == len(data):
            break
        data = further
    return data.decode("utf-8", "surrogateescape")


def _unescaped(data: bytes) -> bytes:
    """Decode every escape once, in a few passes of C code: a long path may have thousands of them.

    It uses `a2b_qp`, whose escapes are `=41`. So each `=`, and each `%` that begins no escape, is escaped first.
    """
    data = data.replace(b"=", b"%3D")
    if b"%%" in data:  # _STRAY would find it as well, but far more slowly
        data = data.replace(b"%%", b"%25%").replace(b"%%", b"%25%")
    return a2b_qp(_STRAY.sub(b"%25", data).replace(b"%", b"="))
