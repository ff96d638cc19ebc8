"""A client that sends as much as it can over several connections, bounded in time and in bytes."""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import ExitStack
from typing import cast

from integration.service.service_process import Service

__all__ = ["Flood", "flood"]

RECEIVE = 256 * 1024


class Flood:
    """What was sent and received over all connections."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0
        self.answers = 0
        """Status lines among what was received, roughly: one that is cut in two is not counted."""
        self.closed = 0
        """Connections that the service has closed."""
        self.tail = b""
        """The last that was received on any connection."""


def flood(
    service: Service,
    data: bytes,
    seconds: float,
    *,
    connections: int = 1,
    reads: bool = True,
    repeat: bool = True,
    max_bytes: int = 256 * 1024 * 1024,
    start: bytes = b"",
) -> Flood:
    """Send `start` and then `data`, once or again and again, on each connection.

    Without `reads` no answer is read, and the connections stay open until the end.
    """
    result = Flood()
    deadline = time.monotonic() + seconds
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        rests: dict[socket.socket, memoryview] = {}
        for _ in range(connections):
            one = stack.enter_context(socket.create_connection((service.host, service.port), 30))
            one.setblocking(False)
            rests[one] = memoryview(start + data)
            selector.register(one, selectors.EVENT_WRITE | (selectors.EVENT_READ if reads else 0))
        while rests and time.monotonic() < deadline and result.sent < max_bytes:
            for key, events in selector.select(0.05):
                one = cast(socket.socket, key.fileobj)
                try:
                    if events & selectors.EVENT_READ:
                        _receive(one, result)
                    if events & selectors.EVENT_WRITE:
                        count = one.send(rests[one][:RECEIVE])
                        result.sent += count
                        rests[one] = rests[one][count:]
                except BlockingIOError:
                    continue
                except OSError:
                    result.closed += 1
                    selector.unregister(one)
                    del rests[one]
                    continue
                if not rests[one]:
                    rests[one] = memoryview(data)
                    if not repeat:
                        selector.unregister(one)
                        if reads:
                            selector.register(one, selectors.EVENT_READ)
    return result


def _receive(one: socket.socket, result: Flood) -> None:
    data = one.recv(RECEIVE)
    if not data:
        raise ConnectionResetError
    result.received += len(data)
    result.answers += data.count(b"HTTP/1.1 ")
    result.tail = data
