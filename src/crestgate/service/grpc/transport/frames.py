# mypyc: compile
"""HTTP/2 frames (RFC 9113), as far as gRPC needs them: constants, and encoders of those that are sent."""

from __future__ import annotations

from struct import Struct
from typing import Final

__all__ = [
    "Http2ConnectionError",
    "Http2StreamError",
    "frame",
    "goaway",
    "read_settings",
    "read_uint32",
    "rst_stream",
    "settings",
    "window_update",
]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER: Final = Struct(">IBI")
"""Nine bytes: length (three) and type (one) in one integer, flags, stream id."""
FRAME_HEADER_BYTES: Final = 9

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
PRIORITY_FLAG: Final = 32

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = 2**31 - 1
MAX_STREAM_ID: Final = 2**31 - 1
DEFAULT_FRAME_SIZE: Final = 16_384
LARGEST_FRAME_SIZE: Final = 2**24 - 1
_SETTING: Final = Struct(">HI")
_UINT32: Final = Struct(">I")


class Http2ConnectionError(Exception):
    """A connection error of RFC 9113, section 5.4.1: GOAWAY with this code and debug data."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Http2StreamError(Exception):
    """A stream error of RFC 9113, section 5.4.2: RST_STREAM with this code."""

    def __init__(self, stream_id: int, code: int) -> None:
        super().__init__(f"stream {stream_id}, code {code}")
        self.stream_id = stream_id
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """
    >>> frame(PING, ACK, 0, b"12345678").hex()
    '0000080601000000003132333435363738'
    """
    return FRAME_HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join([_SETTING.pack(name, value) for name, value in values.items()]))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The settings of a peer, validated."""
    if len(payload) % _SETTING.size:
        raise Http2ConnectionError(FRAME_SIZE_ERROR, "SETTINGS length is not a multiple of 6")
    values = [(name, value) for name, value in _SETTING.iter_unpack(payload)]
    for name, value in values:
        if name == ENABLE_PUSH and value > 1:
            raise Http2ConnectionError(PROTOCOL_ERROR, "ENABLE_PUSH must be 0 or 1")
        if name == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise Http2ConnectionError(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE above 2^31-1")
        if name == MAX_FRAME_SIZE and not DEFAULT_FRAME_SIZE <= value <= LARGEST_FRAME_SIZE:
            raise Http2ConnectionError(PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
    return values


def rst_stream(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _UINT32.pack(code))


def goaway(last_stream_id: int, code: int, message: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _UINT32.pack(last_stream_id) + _UINT32.pack(code) + message.encode())


def window_update(stream_id: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _UINT32.pack(size))


def read_uint32(payload: bytes, offset: int = 0) -> int:
    value: int = _UINT32.unpack_from(payload, offset)[0]
    return value
