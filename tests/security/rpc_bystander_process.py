"""The process of a bystander over gRPC: see rpc_attack.py. It writes its few frames by hand."""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time

from security.run_delay import RunDelay

PAUSE = 0.002
TIMEOUT = 300.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, DATA, RST_STREAM, SETTINGS, GOAWAY, WINDOW_UPDATE = 1, 0, 3, 4, 7, 8
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def field(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


OPEN_WINDOW = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30))
"""Enough for all responses of a test."""
HEAD = b"".join(
    [
        field(b":method", b"POST"),
        field(b":scheme", b"http"),
        field(b":path", b"/crestgate.v1.RateLimiter/CheckRateLimit"),
        field(b"content-type", b"application/grpc"),
    ]
)


class Channel:
    """One connection, reopened when it ends."""

    def __init__(self, host: str, port: int, size: int) -> None:
        self._address = (host, port)
        key = b"bystander" + b"x" * (size - 9)
        length = bytes([len(key) & 127 | 128, len(key) >> 7]) if len(key) > 127 else bytes([len(key)])
        self._message = b"\x32" + length + key  # CheckRequest.key is field 6
        self._socket: socket.socket | None = None

    def call(self) -> int:
        """Make one call; 200 if it was answered, 0 if the connection ended."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, TIMEOUT)
                self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0, b"") + OPEN_WINDOW)
                self._rest, self._number = b"", 1
            number, self._number = self._number, self._number + 2
            body = len(self._message).to_bytes(5, "big") + self._message
            self._socket.sendall(frame(HEADERS, END_HEADERS, number, HEAD) + frame(DATA, END_STREAM, number, body))
            return 200 if self._answered(self._socket, number) else self.close()
        except OSError:
            return self.close()

    def close(self) -> int:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        return 0

    def _answered(self, connection: socket.socket, number: int) -> bool:
        while True:
            while len(self._rest) >= 9 and len(self._rest) >= 9 + (length := int.from_bytes(self._rest[:3], "big")):
                kind, flags, stream = struct.unpack(">BBI", self._rest[3:9])
                self._rest = self._rest[9 + length :]
                if kind in (GOAWAY, RST_STREAM):
                    return False
                if stream == number and kind == HEADERS and flags & END_STREAM:
                    return True
            piece = connection.recv(65_536)
            if not piece:
                return False
            self._rest += piece


def make_calls(address: str, size: int, fresh: bool, pids: list[int]) -> None:
    """Call until a line arrives on standard input, then write the record."""
    host, _, port = address.rpartition(":")
    delay = RunDelay(pids)
    channel = Channel(host, int(port), size)
    record: list[tuple[float, float, int]] = []
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        delay.start()
        began = time.monotonic()
        status = channel.call()
        took = time.monotonic() - began
        record.append((began, max(took - delay.seconds(), 0.0), status))
        if fresh:
            channel.close()
    sys.stdout.write(json.dumps(record))


if __name__ == "__main__":
    make_calls(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1", [int(pid) for pid in sys.argv[4:]])
