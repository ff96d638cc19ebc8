"""Bytes over a socket: for requests that no client library would send, and answers as they come.

Every wait is bounded. An answer is read with its length, so a connection that stays open is no reason to wait.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from integration.service.service_process import Service

__all__ = ["Answer", "Wire", "ask", "request"]

PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for found, value in self.headers if found.lower() == name.lower()), None)

    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection."""

    def __init__(self, service: Service) -> None:
        self.socket = socket.create_connection((service.host, service.port), PATIENCE)
        self.heard = b""

    def send(self, data: bytes) -> None:
        """Send all of it; what the other side no longer takes is not sent."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def half_close(self) -> None:
        """Say that nothing more comes."""
        self.socket.shutdown(socket.SHUT_WR)

    def answer(self, head: bool = False) -> Answer | None:
        """The next response; None when the connection was closed before one began. `head`: it is one to a HEAD."""
        while b"\r\n\r\n" not in self.heard:
            if not self._more():
                assert not self.heard, f"closed in the middle of an answer: {self.heard!r}"
                return None
        top, _, self.heard = self.heard.partition(b"\r\n\r\n")
        status_line, *lines = top.decode("latin-1").split("\r\n")
        version, status, _ = status_line.split(" ", 2)
        assert version == "HTTP/1.1"
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        answer = Answer(int(status), headers, b"")
        if answer.status == 100:
            return self.answer(head)
        if head or answer.status in (204, 304):
            return answer
        length = answer.header("content-length")
        return Answer(answer.status, headers, self._chunks() if length is None else self._bytes(int(length)))

    def closed(self) -> bool:
        """Whether the other side closes without saying anything more."""
        return not self.heard and not self._more()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _more(self) -> bool:
        try:
            piece = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        self.heard += piece
        return bool(piece)

    def _bytes(self, count: int) -> bytes:
        while len(self.heard) < count:
            assert self._more(), "closed in the middle of a body"
        body, self.heard = self.heard[:count], self.heard[count:]
        return body

    def _chunks(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self.heard:
                assert self._more(), "closed in the middle of a body"
            size, _, self.heard = self.heard.partition(b"\r\n")
            piece = self._bytes(int(size, 16))
            self._bytes(2)
            if not piece:
                return body
            body += piece


def request(
    method: bytes, target: bytes, *headers: bytes, body: bytes | None = None, version: bytes = b"HTTP/1.1"
) -> bytes:
    """A request as bytes, each header as one line."""
    lines = [method + b" " + target + b" " + version, b"host: localhost", *headers]
    if body is not None:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def ask(service: Service, data: bytes, head: bool = False) -> Answer | None:
    """What these bytes are answered with, on a connection of their own."""
    with Wire(service) as wire:
        wire.send(data)
        return wire.answer(head)
