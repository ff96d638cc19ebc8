"""A raw HTTP/1.1 client: sends requests as bytes that no client library would send, and reads unmodified responses.

Every wait is bounded. A response is read by its length, so a connection that stays open causes no wait.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from integration.service.service_process import Service

__all__ = ["RawConnection", "RawResponse", "request", "send_raw"]

TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class RawResponse:
    """One response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for field, value in self.headers if field.lower() == name.lower()), None)

    def json(self) -> Any:
        return json.loads(self.body)


class RawConnection:
    """One connection."""

    def __init__(self, service: Service) -> None:
        self.socket = socket.create_connection((service.host, service.port), TIMEOUT)
        self.buffer = b""

    def send(self, data: bytes) -> None:
        """Send all bytes; stop silently if the peer has closed the connection."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def half_close(self) -> None:
        """Shut down the sending side."""
        self.socket.shutdown(socket.SHUT_WR)

    def read_response(self, head: bool = False) -> RawResponse | None:
        """Read the next response; None if the connection closed before one began. `head`: the request was a HEAD."""
        while b"\r\n\r\n" not in self.buffer:
            if not self._receive():
                assert not self.buffer, f"closed in the middle of a response: {self.buffer!r}"
                return None
        head_block, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        status_line, *lines = head_block.decode("latin-1").split("\r\n")
        version, status, _ = status_line.split(" ", 2)
        assert version == "HTTP/1.1"
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        response = RawResponse(int(status), headers, b"")
        if response.status == 100:
            return self.read_response(head)
        if head or response.status in (204, 304):
            return response
        length = response.header("content-length")
        return RawResponse(
            response.status, headers, self._read_chunks() if length is None else self._read_bytes(int(length))
        )

    def closed(self) -> bool:
        """Whether the peer closes without sending more data."""
        return not self.buffer and not self._receive()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        self.buffer += data
        return bool(data)

    def _read_bytes(self, count: int) -> bytes:
        while len(self.buffer) < count:
            assert self._receive(), "closed in the middle of a body"
        body, self.buffer = self.buffer[:count], self.buffer[count:]
        return body

    def _read_chunks(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self.buffer:
                assert self._receive(), "closed in the middle of a body"
            size, _, self.buffer = self.buffer.partition(b"\r\n")
            data = self._read_bytes(int(size, 16))
            self._read_bytes(2)
            if not data:
                return body
            body += data


def request(
    method: bytes, target: bytes, *headers: bytes, body: bytes | None = None, version: bytes = b"HTTP/1.1"
) -> bytes:
    """A request as bytes, each header as one line."""
    lines = [method + b" " + target + b" " + version, b"host: localhost", *headers]
    if body is not None:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def send_raw(service: Service, data: bytes, head: bool = False) -> RawResponse | None:
    """Send bytes on a new connection and return the response."""
    with RawConnection(service) as connection:
        connection.send(data)
        return connection.read_response(head)
