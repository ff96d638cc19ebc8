# mypyc: compile
"""Reads the bytes of plain RateLimitRequests: a domain, descriptors of entries, and hits for all of them.

Proxies seldom send anything else, and message objects take a fifth of a call whose counter is new. What is not plain
(other fields, fields given twice, what is invalid or unusual) is left to protobuf.
"""

from __future__ import annotations

from typing import Final, final

__all__ = ["PlainRequest", "read_plain"]

FIRST: Final = 1 << 3 | 2
"""Tag of a request's domain, a descriptor's entry, and an entry's key."""
SECOND: Final = 2 << 3 | 2
"""Tag of a request's descriptor, and an entry's value."""
HITS: Final = 3 << 3
MAX_VARINT_BYTES: Final = 4


@final
class PlainRequest:
    """The fields of a RateLimitRequest."""

    __slots__ = ("descriptors", "domain", "hits")

    def __init__(self) -> None:
        self.domain = ""
        self.descriptors: list[list[tuple[str, str]]] = []
        """The entries of each."""
        self.hits = 0


def read_plain(data: bytes) -> PlainRequest | None:
    """A request; None if it is not plain."""
    try:
        return _read_request(data)
    except (IndexError, ValueError):
        return None


def _read_request(data: bytes) -> PlainRequest | None:
    request = PlainRequest()
    has_domain = has_hits = False
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        size, at = _varint(data, at + 1)
        if tag == HITS:
            if has_hits:
                return None
            has_hits = True
            request.hits = size
            continue
        if at + size > end:
            return None
        if tag == SECOND:
            entries = _read_entries(data, at, at + size)
            if entries is None:
                return None
            request.descriptors.append(entries)
        elif tag == FIRST and not has_domain:
            has_domain = True
            request.domain = data[at : at + size].decode()
        else:
            return None
        at += size
    return request


def _read_entries(data: bytes, at: int, end: int) -> list[tuple[str, str]] | None:
    entries: list[tuple[str, str]] = []
    while at < end:
        tag = data[at]
        size, at = _varint(data, at + 1)
        entry_end = at + size
        if tag != FIRST or entry_end > end:
            return None
        key = value = ""
        has_key = has_value = False
        while at < entry_end:
            tag = data[at]
            size, at = _varint(data, at + 1)
            if at + size > entry_end:
                return None
            if tag == FIRST and not has_key:
                has_key = True
                key = data[at : at + size].decode()
            elif tag == SECOND and not has_value:
                has_value = True
                value = data[at : at + size].decode()
            else:
                return None
            at += size
        entries.append((key, value))
    return entries


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the offset after it; IndexError or ValueError if there is none."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for place in range(1, MAX_VARINT_BYTES):
        more = data[at + place]
        value |= (more & 0x7F) << 7 * place
        if more < 0x80:
            return value, at + place + 1
    raise ValueError("number too large")
