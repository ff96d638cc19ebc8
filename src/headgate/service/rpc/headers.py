"""The headers of calls and of answers: what a caller asks for, and what it is told, packed as HTTP/2 packs them.

Callers send nearly the same headers with every call, and most of a block is numbers that point into the table that
both sides keep, or text that does not enter it. Such a block means the same until the table changes: so it is
remembered, with all that was made of it, since to unpack it costs more than all else of a call. Ours are written out in
full and never enter the table: an answer has three, and two of them are the same bytes every time.
"""

from __future__ import annotations

import re
from typing import Final, final

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from headgate.service.rpc.call import Metadata
from headgate.service.rpc.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, Broken

__all__ = ["ANSWER", "DONE", "Head", "Heads", "block", "refusal", "sayable"]

MOST_HEADER_BYTES: Final = 16_384
MOST_REMEMBERED: Final = 64
LONGEST_REMEMBERED: Final = 256
"""Bytes of a block."""
MAX_REMEMBERED_BYTES: Final = 65_536
"""Of all the headers that are remembered for a connection. A short block may point at long headers."""
FIELD_BYTES: Final = 192
"""What a header costs in memory beside its name and value."""
CONTENT: Final = b"application/grpc"
UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
PSEUDO: Final = (b":method", b":scheme", b":path", b":authority")
OF_CONNECTIONS: Final = frozenset([b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"])
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BARRED: Final = re.compile(rb"[\0\r\n]")
_RESIZED: Final = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\0-\x7f]){3}")
"""A table that is resized again and again, where twice says everything (RFC 7541, 4.2)."""
_UNSAYABLE: Final = re.compile(rb"[^\x20-\x24\x26-\x7e]")


@final
class Head:
    """What the headers of a call say. `wrong` is the code of an HTTP status for what is no call of gRPC at all;
    `malformed` headers must not be answered; `asking` ones have a method or the like, as those behind messages must
    not."""

    __slots__ = ("asking", "fields", "length", "malformed", "metadata", "path", "size", "timeout", "wrong")

    def __init__(self) -> None:
        self.path = b""
        self.size = 0
        """Bytes in memory, about."""
        self.metadata: list[tuple[bytes, bytes]] = []
        self.fields: dict[bytes, bytes] = {}
        self.timeout: float | None = None
        """Seconds."""
        self.length: int | None = None
        """Of the content, if it is told."""
        self.wrong = b""
        self.asking = False
        self.malformed = False


@final
class Heads:
    """Reads the headers that come on one connection."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MOST_HEADER_BYTES)
        self._known: dict[bytes, Head] = {}
        self._known_bytes = 0
        self.decoded = 0
        """Bytes of headers that were not known already."""
        self.resizes = 0
        """Blocks that resized the table."""

    def read(self, packed: bytes) -> Head:
        """What a block says. Each block of a connection must be read, in its order; Broken when one cannot be."""
        known = self._known.get(packed)
        if known is not None:
            return known
        if _RESIZED.match(packed):
            raise Broken(COMPRESSION_ERROR, "a table that is resized again and again")
        try:
            fields = self._decoder.decode(packed, raw=True)
        except OversizedHeaderListError:
            raise Broken(ENHANCE_YOUR_CALM, "more headers than anybody needs") from None
        except (HPACKError, IndexError, ValueError):
            raise Broken(COMPRESSION_ERROR, "headers that cannot be unpacked") from None
        head = _head([(bytes(name), bytes(value)) for name, value in fields])
        self.decoded += head.size
        if packed and 0x20 <= packed[0] < 0x40:
            self.resizes += 1
        if not _keeps_table(packed):
            self._forget()
        elif len(packed) <= LONGEST_REMEMBERED:
            if len(self._known) >= MOST_REMEMBERED or self._known_bytes + head.size > MAX_REMEMBERED_BYTES:
                self._forget()  # what is still sent is soon here again
            self._known[packed] = head
            self._known_bytes += head.size
        return head

    def _forget(self) -> None:
        self._known.clear()
        self._known_bytes = 0


def _keeps_table(packed: bytes) -> bool:
    """Whether a block leaves the table as it is: nothing but entries of it, and headers that are written out and not
    to be kept (some callers never keep `:path`). The block has been unpacked, so it is well formed."""
    at, size = 0, len(packed)
    while at < size:
        first = packed[at]
        if first >= 0x80:
            at = _number(packed, at, 0x7F)[1]
        elif first >= 0x20:
            return False
        else:
            name, at = _number(packed, at, 0x0F)
            for _ in range(1 if name else 2):
                length, at = _number(packed, at, 0x7F)
                at += length
    return size > 0


def _number(packed: bytes, at: int, most: int) -> tuple[int, int]:
    """A number as HPACK writes it into the last bits of a byte and those behind it; and where it ends."""
    value = packed[at] & most
    at += 1
    if value == most:
        shift = 0
        while True:
            more = packed[at]
            at += 1
            value += (more & 0x7F) << shift
            shift += 7
            if more < 0x80:
                break
    return value, at


def _head(fields: Metadata) -> Head:
    head = Head()
    pseudo: dict[bytes, bytes] = {}
    content = b""
    for name, value in fields:
        head.size += FIELD_BYTES + len(name) + len(value)
        if _BARRED.search(value):
            head.malformed = True
        if name.startswith(b":"):
            if name not in PSEUDO or name in pseudo or head.metadata:
                head.malformed = True
            pseudo[name] = value
            continue
        if not _NAME.fullmatch(name) or name in OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
            head.malformed = True
        elif name == b"grpc-timeout":
            _read_timeout(head, value)
        elif name == b"content-length":
            head.length = int(value) if value.isdigit() and len(value) < 16 else -1
        elif name == b"content-type":
            content = value
        head.metadata.append((name, value))
        head.fields[name] = value
    head.asking = bool(pseudo)
    method, head.path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if not method or not head.path or not pseudo.get(b":scheme"):
        head.malformed = True
    if method != b"POST":
        head.wrong = b"405"
    elif not content.startswith(CONTENT) or content[len(CONTENT) : len(CONTENT) + 1] not in (b"", b"+", b";"):
        head.wrong = b"415"
    return head


def _read_timeout(head: Head, value: bytes) -> None:
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        head.malformed = True
    else:
        head.timeout = int(match[1]) * UNITS[match[2]]


def block(fields: Metadata) -> bytes:
    """Headers, written out.

    >>> block([(b"grpc-status", b"0")])
    b'\\x00\\x0bgrpc-status\\x010'
    """
    packed = b""
    for name, value in fields:
        packed += b"\0" + _length(len(name)) + name + _length(len(value)) + value
    return packed


def _length(size: int) -> bytes:
    """A number as HPACK writes it behind one bit."""
    if size < 127:
        return bytes((size,))
    size -= 127
    more = [127]
    while size >= 128:
        more.append(size % 128 + 128)
        size //= 128
    more.append(size)
    return bytes(more)


def refusal(status: int, message: str, trailers: Metadata = ()) -> bytes:
    """How a call ends that is not answered, behind the headers of an answer or in their place."""
    fields = [(b"grpc-status", b"%d" % status)]
    if message:
        fields.append((b"grpc-message", _UNSAYABLE.sub(_escaped, message.encode(errors="replace"))))
    return block([*fields, *[(name, sayable(value)) for name, value in trailers]])


def _escaped(found: re.Match[bytes]) -> bytes:
    return b"%%%02X" % found[0][0]


def sayable(value: bytes) -> bytes:
    """A value without what no header may hold."""
    return value.replace(b"\r", b" ").replace(b"\n", b" ").replace(b"\0", b" ")


ANSWER: Final = b"\x88" + block([(b"content-type", CONTENT)])
"""`:status: 200`, and what comes."""
DONE: Final = block([(b"grpc-status", b"0")])
