"""Stored forms of names and prefixes: any text is a name, and no two names have the same form.

A name that is too long is replaced by its SHA-256; so is one that looks like such a replacement.
"""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import quote

__all__ = ["file_name", "quoted", "short_name", "stored_name"]

MAX_BYTES = 255
_HASH_PREFIX = b"sha256:"
_SUFFIX = ".lock"


def short_name(name: str) -> bytes:
    """The name as at most 255 bytes.

    >>> short_name("client:42"), len(short_name("x" * 1000))
    (b'client:42', 71)
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a lock must be a non-empty string, such as 'client:42', not {name!r}")
    return _shortened(name.encode("utf-8", "surrogatepass"))


def stored_name(prefix: str, name: str) -> bytes:
    """The prefix and the name as at most 255 bytes, which a database row has.

    >>> stored_name("cg", "client:42")
    b'cg:client:42'
    """
    return _shortened(quoted(prefix).encode() + b":" + short_name(name))


def file_name(prefix: str, name: str) -> str:
    """The prefix and the name as the name of a file.

    >>> file_name("cg", "client:42/é")
    'cg:client%3A42%2F%C3%A9.lock'
    """
    file = f"{quoted(prefix)}:{quoted(short_name(name))}{_SUFFIX}"
    return file if len(file) <= MAX_BYTES else f":{sha256(file.encode()).hexdigest()}{_SUFFIX}"


def quoted(text: str | bytes) -> str:
    return quote(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text, safe="")


def _shortened(name: bytes) -> bytes:
    if len(name) <= MAX_BYTES and not name.startswith(_HASH_PREFIX):
        return name
    return _HASH_PREFIX + sha256(name).hexdigest().encode()
