# mypyc: compile
"""HPACK: request headers with a cache of decoded blocks, and response headers.

Clients send nearly the same headers with every call, and most of a block are indices into the dynamic table, or
literals that do not enter it. Such a block means the same until the table changes. So decoded blocks are cached, with
everything derived from them: decoding costs more than the rest of a call. Response headers are literals that never
enter the table: a response has three, and two of them are constant.
"""

from __future__ import annotations

import re
from typing import Final, final

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from crestgate.service.grpc.transport.call import Metadata
from crestgate.service.grpc.transport.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, Http2ConnectionError

__all__ = [
    "OK_TRAILERS",
    "RESPONSE_HEADERS",
    "HeaderDecoder",
    "RequestHeaders",
    "encode_headers",
    "error_trailers",
    "header_value",
]

MAX_HEADER_BYTES: Final = 16_384
MAX_CACHED_BLOCKS: Final = 64
MAX_CACHED_BLOCK_BYTES: Final = 256
"""Of one encoded block."""
MAX_CACHED_BYTES: Final = 65_536
"""Decoded, of all cached blocks of a connection. A short block may refer to long headers."""
FIELD_BYTES: Final = 192
"""Memory of a header, beside its name and value."""
CONTENT_TYPE: Final = b"application/grpc"
TIMEOUT_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
PSEUDO_HEADERS: Final = (b":method", b":scheme", b":path", b":authority")
CONNECTION_HEADERS: Final = frozenset(
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"]
)
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_FORBIDDEN: Final = re.compile(rb"[\0\r\n]")
_RESIZES: Final = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\0-\x7f]){3}")
"""Three table size updates in a row, where two are enough (RFC 7541, section 4.2)."""
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
        self._decoder = Decoder(max_header_list_size=MAX_HEADER_BYTES)
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
        if _RESIZES.match(block):
            raise Http2ConnectionError(COMPRESSION_ERROR, "too many HPACK table size updates")
        try:
            fields = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError:
            raise Http2ConnectionError(ENHANCE_YOUR_CALM, "header list too large") from None
        except (HPACKError, IndexError, ValueError):
            raise Http2ConnectionError(COMPRESSION_ERROR, "invalid header block") from None
        headers = _parse([(bytes(name), bytes(value)) for name, value in fields])
        self.decoded += headers.size
        if block and 0x20 <= block[0] < 0x40:
            self.resizes += 1
        if not _leaves_table(block):
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


def _leaves_table(block: bytes) -> bool:
    """Whether a block leaves the table unchanged: indexed fields, and literals that are not indexed (some clients never
    index `:path`). The block has been decoded, so it is well formed."""
    offset, size = 0, len(block)
    while offset < size:
        first = block[offset]
        if first >= 0x80:
            offset = _read_integer(block, offset, 0x7F)[1]
        elif first >= 0x20:
            return False
        else:
            name, offset = _read_integer(block, offset, 0x0F)
            for _ in range(1 if name else 2):
                length, offset = _read_integer(block, offset, 0x7F)
                offset += length
    return size > 0


def _read_integer(block: bytes, offset: int, prefix: int) -> tuple[int, int]:
    """An integer of RFC 7541, section 5.1, and the offset after it."""
    value = block[offset] & prefix
    offset += 1
    if value == prefix:
        shift = 0
        while True:
            more = block[offset]
            offset += 1
            value += (more & 0x7F) << shift
            shift += 7
            if more < 0x80:
                break
    return value, offset


def _parse(fields: Metadata) -> RequestHeaders:
    headers = RequestHeaders()
    pseudo: dict[bytes, bytes] = {}
    content_type = b""
    for name, value in fields:
        headers.size += FIELD_BYTES + len(name) + len(value)
        if _FORBIDDEN.search(value):
            headers.malformed = True
        if name.startswith(b":"):
            if name not in PSEUDO_HEADERS or name in pseudo or headers.metadata:
                headers.malformed = True
            pseudo[name] = value
            continue
        if not _NAME.fullmatch(name) or name in CONNECTION_HEADERS or (name == b"te" and value != b"trailers"):
            headers.malformed = True
        elif name == b"grpc-timeout":
            _parse_timeout(headers, value)
        elif name == b"content-length":
            headers.content_length = int(value) if value.isdigit() and len(value) < 16 else -1
        elif name == b"content-type":
            content_type = value
        headers.metadata.append((name, value))
        headers.fields[name] = value
    headers.has_pseudo_headers = bool(pseudo)
    method, headers.path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if not method or not headers.path or not pseudo.get(b":scheme"):
        headers.malformed = True
    if method != b"POST":
        headers.http_status = b"405"
    elif not content_type.startswith(CONTENT_TYPE) or content_type[len(CONTENT_TYPE) : len(CONTENT_TYPE) + 1] not in (
        b"",
        b"+",
        b";",
    ):
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


RESPONSE_HEADERS: Final = b"\x88" + encode_headers([(b"content-type", CONTENT_TYPE)])
"""`:status: 200` and the content type."""
OK_TRAILERS: Final = encode_headers([(b"grpc-status", b"0")])
