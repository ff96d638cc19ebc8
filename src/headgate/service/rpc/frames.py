"""HTTP/2's frames, as far as gRPC needs them (RFC 9113): their numbers, and how those that we send are written."""

from __future__ import annotations

from struct import Struct
from typing import Final

__all__ = [
    "Broken",
    "StreamBroken",
    "frame",
    "goaway",
    "number",
    "read_settings",
    "reset",
    "settings",
    "window_update",
]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD: Final = Struct(">IBI")
"""Nine bytes: the length (three) and the kind (one) in one number, the flags, and the stream's number."""
HEAD_BYTES: Final = 9

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
PRIORITISED: Final = 32

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
MOST_STREAMS: Final = 3
INITIAL_WINDOW: Final = 4
MOST_FRAME: Final = 5
MOST_HEADERS: Final = 6

DEFAULT_WINDOW: Final = 65_535
LARGEST_WINDOW: Final = 2**31 - 1
DEFAULT_FRAME: Final = 16_384
LARGEST_FRAME: Final = 2**24 - 1
_SETTING: Final = Struct(">HI")
_NUMBER: Final = Struct(">I")


class Broken(Exception):  # noqa: N818 - says what it is
    """A peer that broke the rules: the connection ends, with this code and these words."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.words = words


class StreamBroken(Exception):  # noqa: N818 - as above
    """The same of one stream: it is reset, and the connection goes on."""

    def __init__(self, stream: int, code: int) -> None:
        super().__init__(f"stream {stream}, code {code}")
        self.stream = stream
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """
    >>> frame(PING, ACK, 0, b"12345678").hex()
    '0000080601000000003132333435363738'
    """
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join([_SETTING.pack(name, value) for name, value in values.items()]))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """What a peer sets, checked for what nobody may set."""
    if len(payload) % _SETTING.size:
        raise Broken(FRAME_SIZE_ERROR, "SETTINGS of a length that is no multiple of 6")
    found = [(name, value) for name, value in _SETTING.iter_unpack(payload)]
    for name, value in found:
        if name == ENABLE_PUSH and value > 1:
            raise Broken(PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
        if name == INITIAL_WINDOW and value > LARGEST_WINDOW:
            raise Broken(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE beyond 2^31-1")
        if name == MOST_FRAME and not DEFAULT_FRAME <= value <= LARGEST_FRAME:
            raise Broken(PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
    return found


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(code))


def goaway(last: int, code: int, words: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _NUMBER.pack(last) + _NUMBER.pack(code) + words.encode())


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(size))


def number(payload: bytes, at: int = 0) -> int:
    """Four bytes."""
    found: int = _NUMBER.unpack_from(payload, at)[0]
    return found
