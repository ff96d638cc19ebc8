# mypyc: compile
"""Header fields, and the tables that header blocks refer to (RFC 7541, section 2.3 and appendix A).

A field is checked once, when it is decoded as a literal. Those in a table are used again and again.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final, final

__all__ = [
    "CONTENT_LENGTH",
    "CONTENT_TYPE",
    "MAX_TABLE_BYTES",
    "PSEUDO",
    "TIMEOUT",
    "HeaderField",
    "HeaderTable",
    "field_with_name",
]

MAX_TABLE_BYTES: Final = 4096
ENTRY_BYTES: Final = 32
"""Of an entry, beside its name and value, by the RFC."""
PLAIN: Final = 0
PSEUDO: Final = 1
TIMEOUT: Final = 2
CONTENT_LENGTH: Final = 3
CONTENT_TYPE: Final = 4
TE: Final = 5
INVALID: Final = 6
"""No request has a header of this name."""
KINDS: Final = {
    b"grpc-timeout": TIMEOUT,
    b"content-length": CONTENT_LENGTH,
    b"content-type": CONTENT_TYPE,
    b"te": TE,
    b"connection": INVALID,
    b"keep-alive": INVALID,
    b"proxy-connection": INVALID,
    b"transfer-encoding": INVALID,
    b"upgrade": INVALID,
}
STATIC: Final = """\
:authority\n:method GET\n:method POST\n:path /\n:path /index.html\n:scheme http\n:scheme https\n:status 200\n:status 204
:status 206\n:status 304\n:status 400\n:status 404\n:status 500\naccept-charset\naccept-encoding gzip, deflate
accept-language\naccept-ranges\naccept\naccess-control-allow-origin\nage\nallow\nauthorization\ncache-control
content-disposition\ncontent-encoding\ncontent-language\ncontent-length\ncontent-location\ncontent-range\ncontent-type
cookie\ndate\netag\nexpect\nexpires\nfrom\nhost\nif-match\nif-modified-since\nif-none-match\nif-range
if-unmodified-since\nlast-modified\nlink\nlocation\nmax-forwards\nproxy-authenticate\nproxy-authorization\nrange
referer\nrefresh\nretry-after\nserver\nset-cookie\nstrict-transport-security\ntransfer-encoding\nuser-agent\nvary\nvia
www-authenticate"""
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_FORBIDDEN: Final = re.compile(rb"[\0\r\n]")


@final
class HeaderField:
    """A header, immutable."""

    __slots__ = ("kind", "malformed", "name", "size", "value")

    def __init__(self, name: bytes, value: bytes, kind: int) -> None:
        self.name = name
        self.value = value
        self.kind = kind
        """What its name means."""
        self.size = ENTRY_BYTES + len(name) + len(value)
        """As the RFC counts it, for tables and lists."""
        self.malformed = (
            kind == INVALID or (kind == TE and value != b"trailers") or _FORBIDDEN.search(value) is not None
        )
        """Whether no request may have it."""


def field_with_name(name: bytes, value: bytes) -> HeaderField:
    """A header whose name is in no table."""
    if name[:1] == b":":
        kind = PSEUDO
    elif _NAME.fullmatch(name) is None:
        kind = INVALID
    else:
        kind = KINDS.get(name, PLAIN)
    return HeaderField(name, value, kind)


def _static_fields() -> list[HeaderField]:
    fields: list[HeaderField] = []
    for line in STATIC.split("\n"):
        name, _, value = line.partition(" ")
        fields.append(field_with_name(name.encode(), value.encode()))
    return fields


_fields: list[HeaderField] = _static_fields()
STATIC_FIELDS: Final[list[HeaderField]] = _fields
STATIC_COUNT: Final = 61


@final
class HeaderTable:
    """What one connection's indices refer to: the static table, and behind it the fields that were added, newest
    first."""

    def __init__(self) -> None:
        self.added: deque[HeaderField] = deque()
        self.size = 0
        self.max_size = MAX_TABLE_BYTES

    def get(self, index: int) -> HeaderField:
        """IndexError where there is none."""
        if index <= STATIC_COUNT:
            if index < 1:
                raise IndexError("0 is no index")
            return STATIC_FIELDS[index - 1]
        return self.added[index - STATIC_COUNT - 1]

    def add(self, field: HeaderField) -> None:
        """Add a field, and evict the oldest. One that is larger than the table only empties it."""
        self.added.appendleft(field)
        self.size += field.size
        self._evict()

    def resize(self, max_size: int) -> None:
        """Set the size that the peer wants to use; ValueError for more than it may."""
        if max_size > MAX_TABLE_BYTES:
            raise ValueError("table too large")
        self.max_size = max_size
        self._evict()

    def _evict(self) -> None:
        while self.size > self.max_size:
            self.size -= self.added.pop().size
