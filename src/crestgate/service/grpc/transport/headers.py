# mypyc: compile
"""HPACK: request headers with a cache of decoded blocks, and response headers.

Clients send nearly the same headers with every call, and most of a block are indices into the dynamic table, or
literals that do not enter it. Such a block means the same until the table changes. So decoded blocks are cached, with
everything derived from them. Others (a trace's id, a deadline) differ in every call, and are decoded. Response headers
are literals that never enter the table: a response has three, and two of them are constant.
"""

from __future__ import annotations

import re
from typing import Final, final

from crestgate.service.grpc.transport.call import Metadata
from crestgate.service.grpc.transport.header_block import BlockReader
from crestgate.service.grpc.transport.header_table import CONTENT_LENGTH, CONTENT_TYPE, PSEUDO, TIMEOUT, HeaderField

__all__ = [
    "OK_TRAILERS",
    "RESPONSE_HEADERS",
    "HeaderDecoder",
    "RequestHeaders",
    "encode_headers",
    "error_trailers",
    "header_value",
]

MAX_CACHED_BLOCKS: Final = 64
MAX_CACHED_BLOCK_BYTES: Final = 256
"""Of one encoded block."""
MAX_CACHED_BYTES: Final = 65_536
"""Decoded, of all cached blocks of a connection. A short block may refer to long headers."""
FIELD_BYTES: Final = 160
"""Memory of a header, beside what counts for tables."""
GRPC: Final = b"application/grpc"
TIMEOUT_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
PSEUDO_HEADERS: Final = (b":method", b":scheme", b":path", b":authority")
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_PERCENT_ENCODED: Final = re.compile(rb"[^\x20-\x24\x26-\x7e]")


@final
class RequestHeaders:
    """Decoded headers of a request, or its trailers."""

    __slots__ = (
        "content_length",
        "fields",
        "has_pseudo_headers",
        "http_status",
        "malformed",
        "metadata",
        "path",
        "size",
        "timeout",
    )

    def __init__(self) -> None:
        self.path = b""
        self.size = 0
        """Memory, about."""
        self.metadata: list[tuple[bytes, bytes]] = []
        self.fields: dict[bytes, bytes] = {}
        self.timeout: float | None = None
        """Seconds."""
        self.content_length: int | None = None
        self.http_status = b""
        """HTTP status of the response if this is no gRPC call at all."""
        self.has_pseudo_headers = False
        """Trailers must not have any."""
        self.malformed = False
        """The stream must be reset (RFC 9113, section 8.1.1)."""


@final
class HeaderDecoder:
    """Decodes the header blocks of one connection."""

    def __init__(self) -> None:
        self._reader = BlockReader()
        self._cache: dict[bytes, RequestHeaders] = {}
        self._cached_bytes = 0
        self.decoded = 0
        """Bytes of headers that were not in the cache."""
        self.resizes = 0
        """Blocks that resized the table."""

    def decode(self, block: bytes) -> RequestHeaders:
        """Decode a block. Every block of a connection must be decoded, in order; Http2ConnectionError if invalid."""
        cached = self._cache.get(block)
        if cached is not None:
            return cached
        reader = self._reader
        headers = _parse(reader.read(block))
        self.decoded += headers.size
        if block and 0x20 <= block[0] < 0x40:
            self.resizes += 1
        if reader.changed_table:
            self._clear()
        elif len(block) <= MAX_CACHED_BLOCK_BYTES:
            if len(self._cache) >= MAX_CACHED_BLOCKS or self._cached_bytes + headers.size > MAX_CACHED_BYTES:
                self._clear()  # blocks in use are soon cached again
            self._cache[block] = headers
            self._cached_bytes += headers.size
        return headers

    def _clear(self) -> None:
        self._cache.clear()
        self._cached_bytes = 0


def _parse(fields: list[HeaderField]) -> RequestHeaders:
    headers = RequestHeaders()
    pseudo: dict[bytes, bytes] = {}
    content_type = b""
    for field in fields:
        name, value, kind = field.name, field.value, field.kind
        headers.size += FIELD_BYTES + field.size
        if field.malformed:
            headers.malformed = True
        if kind == PSEUDO:
            if name not in PSEUDO_HEADERS or name in pseudo or headers.metadata:
                headers.malformed = True
            pseudo[name] = value
            continue
        if kind == TIMEOUT:
            _parse_timeout(headers, value)
        elif kind == CONTENT_LENGTH:
            headers.content_length = int(value) if value.isdigit() and len(value) < 16 else -1
        elif kind == CONTENT_TYPE:
            content_type = value
        headers.metadata.append((name, value))
        headers.fields[name] = value
    headers.has_pseudo_headers = bool(pseudo)
    method, headers.path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if not method or not headers.path or not pseudo.get(b":scheme"):
        headers.malformed = True
    if method != b"POST":
        headers.http_status = b"405"
    elif not content_type.startswith(GRPC) or content_type[len(GRPC) : len(GRPC) + 1] not in (b"", b"+", b";"):
        headers.http_status = b"415"
    return headers


def _parse_timeout(headers: RequestHeaders, value: bytes) -> None:
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        headers.malformed = True
    else:
        headers.timeout = int(match[1]) * TIMEOUT_UNITS[match[2]]


def encode_headers(fields: Metadata) -> bytes:
    """A header block of literals that are not indexed.

    >>> encode_headers([(b"grpc-status", b"0")])
    b'\\x00\\x0bgrpc-status\\x010'
    """
    block = b""
    for name, value in fields:
        block += b"\0" + _encode_length(len(name)) + name + _encode_length(len(value)) + value
    return block


def _encode_length(size: int) -> bytes:
    """An integer of RFC 7541, section 5.1, with a prefix of 7 bits."""
    if size < 127:
        return bytes((size,))
    size -= 127
    encoded = [127]
    while size >= 128:
        encoded.append(size % 128 + 128)
        size //= 128
    encoded.append(size)
    return bytes(encoded)


def error_trailers(status: int, message: str, trailers: Metadata = ()) -> bytes:
    """Trailers of a call that failed, behind response headers or in their place."""
    fields = [(b"grpc-status", b"%d" % status)]
    if message:
        fields.append((b"grpc-message", _PERCENT_ENCODED.sub(_percent_encode, message.encode(errors="replace"))))
    return encode_headers([*fields, *[(name, header_value(value)) for name, value in trailers]])


def _percent_encode(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]


def header_value(value: bytes) -> bytes:
    """A value without the characters that no header may contain."""
    return value.replace(b"\r", b" ").replace(b"\n", b" ").replace(b"\0", b" ")


RESPONSE_HEADERS: Final = b"\x88" + encode_headers([(b"content-type", GRPC)])
"""`:status: 200` and the content type."""
OK_TRAILERS: Final = encode_headers([(b"grpc-status", b"0")])
