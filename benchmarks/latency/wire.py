"""Requests and responses as bytes, without sockets: a client that costs little beside the server it measures.

Both kinds of connection answer `room` (how many more requests it takes now), `request` (the bytes to send) and
`receive` (which requests were answered). They read as much of a response as they need to tell success from failure.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Protocol

__all__ = ["Connection", "FailedCallError", "GrpcConnection", "HttpConnection"]


class FailedCallError(Exception):
    """A request was not answered as it should be: such latencies mean nothing."""


class Connection(Protocol):
    """One connection. Times are carried along: what was given with a request comes back with its response."""

    def opening(self) -> bytes: ...

    def room(self) -> int: ...

    def request(self, body: bytes, planned: float) -> bytes: ...

    def receive(self, data: bytes) -> tuple[list[float], bytes]:
        """The times of the requests that were answered, and what is to be sent back."""
        ...


class HttpConnection:
    """HTTP/1.1 with one request at a time, as most clients do."""

    def __init__(self, path: str) -> None:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        self._head = head.encode()
        self._planned = 0.0
        self._busy = False
        self._received = b""
        self.body = b""
        """The last response's."""

    def opening(self) -> bytes:
        return b""

    def room(self) -> int:
        return 0 if self._busy else 1

    def request(self, body: bytes, planned: float) -> bytes:
        self._busy, self._planned = True, planned
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)

    def receive(self, data: bytes) -> tuple[list[float], bytes]:
        if self._received:
            data = self._received + data
        end = data.find(b"\r\n\r\n")
        if end >= 0:
            head = data[:end].lower()
            if head[9:12] != b"200":
                raise FailedCallError(data[:300].decode(errors="replace"))
            _, _, after = head.partition(b"\r\ncontent-length:")
            whole = end + 4 + int(after.split(b"\r", 1)[0])
            if len(data) >= whole:
                self.body = data[end + 4 : whole]
                self._received, self._busy = b"", False
                return [self._planned], b""
        self._received = data
        return [], b""


_FRAME = struct.Struct(">BHBBL")
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_LARGEST_WINDOW = 2**31 - 1
_FIRST_WINDOW = 65_535
_MAX_STREAMS, _INITIAL_WINDOW = 3, 4


class GrpcConnection:
    """gRPC over HTTP/2 without TLS: many calls at once on one connection, with headers that are in no index."""

    def __init__(self, path: str, max_streams: int) -> None:
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        fields += [("te", "trailers"), ("content-type", "application/grpc")]
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)
        self._head = _FRAME.pack(0, len(block), _HEADERS, _END_HEADERS, 0)[:5]
        self._block = block
        self._max_streams = max_streams
        self._next = 1
        self._window = _FIRST_WINDOW
        self._planned: dict[int, float] = {}
        self._with_data: set[int] = set()
        self._received = b""
        self.messages: deque[bytes] = deque(maxlen=1)
        """The last response."""

    def opening(self) -> bytes:
        settings = struct.pack(">HL", _INITIAL_WINDOW, _LARGEST_WINDOW)
        return b"".join(
            [
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                _FRAME.pack(0, len(settings), _SETTINGS, 0, 0) + settings,
                _FRAME.pack(0, 4, _WINDOW, 0, 0) + struct.pack(">L", _LARGEST_WINDOW - _FIRST_WINDOW),
            ]
        )

    def room(self) -> int:
        """Below a thousand bytes of the server's window there is none: no request here is larger."""
        return self._max_streams - len(self._planned) if self._window > 1000 else 0

    def request(self, body: bytes, planned: float) -> bytes:
        """`body` is a message with its prefix (see benchmarks.rpc.messages.framed)."""
        number = self._next
        self._next = number + 2
        self._planned[number] = planned
        self._window -= len(body)
        stream = number.to_bytes(4, "big")
        data = _FRAME.pack(0, len(body), _DATA, _END_STREAM, number)
        return b"".join((self._head, stream, self._block, data, body))

    def receive(self, data: bytes) -> tuple[list[float], bytes]:
        if self._received:
            data = self._received + data
        answered: list[float] = []
        reply = b""
        at, size = 0, len(data)
        while size - at >= 9:
            high, low, kind, flags, stream = _FRAME.unpack_from(data, at)
            end = at + 9 + (high << 16) + low
            if end > size:
                break
            if kind == _DATA:
                self._with_data.add(stream)
                self.messages.append(data[at + 14 : end])
            elif kind == _HEADERS and flags & _END_STREAM:
                if stream not in self._with_data:
                    raise FailedCallError(f"a call was refused: {data[at + 9 : end]!r}")
                self._with_data.remove(stream)
                answered.append(self._planned.pop(stream))
            elif kind == _SETTINGS and not flags & _ACK:
                self._settle(data[at + 9 : end])
                reply += _FRAME.pack(0, 0, _SETTINGS, _ACK, 0)
            elif kind == _PING and not flags & _ACK:
                reply += _FRAME.pack(0, 8, _PING, _ACK, 0) + data[at + 9 : end]
            elif kind == _WINDOW and stream == 0:
                self._window += int.from_bytes(data[at + 9 : end], "big")
            elif kind in (_RESET, _GOAWAY):
                raise FailedCallError(f"the server reset a stream or closed the connection: {data[at:end]!r}")
            at = end
        self._received = data[at:]
        return answered, reply

    def _settle(self, settings: bytes) -> None:
        for name, value in struct.iter_unpack(">HL", settings):
            if name == _MAX_STREAMS:
                self._max_streams = min(self._max_streams, value)


def _text(value: str) -> bytes:
    """A string of HPACK without Huffman's code, shorter than 127 bytes."""
    data = value.encode()
    return bytes([len(data)]) + data
