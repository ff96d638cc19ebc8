"""uvicorn's connections, with two things it does not do: give up on who sends too slowly, and answer what is no HTTP
in the same words as everything else.

A client that opens a connection and sends nothing, or its headers and body byte by byte, costs a descriptor and some
memory for as long as it likes: with a few thousand of them nobody else gets in. `Patience` looks at all connections
every few seconds and closes those whose request was begun and not finished in time. Requests themselves pay for that
with one look at the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headgate.http.problem import CONTENT_TYPE, encode_problem, problem

__all__ = ["Connection", "Patience"]

LONGEST_REQUEST = 20.0
"""Seconds from the first byte of a request, or from the connection if there was none yet, to its last byte."""
LOOK_EVERY = 2.0


class Connection(HttpToolsProtocol):
    """A connection, and since when its client owes us the rest of a request. None: it does not."""

    waiting_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self.waiting_since = monotonic()

    def on_message_begin(self) -> None:
        self.waiting_since = monotonic()
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self.waiting_since = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or a version of it that nobody speaks."""
        self.give_up(400, "this is no HTTP/1.1 request: send one")

    def give_up(self, status: int, detail: str) -> None:
        """Say why, unless an answer has begun, and hang up."""
        if self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started:
            members = problem(status, detail)
            body = encode_problem(members)
            head = (
                f"HTTP/1.1 {status} {members['title']}\r\ncontent-type: {CONTENT_TYPE}\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


class Patience:
    """Closes the connections of one server whose clients have kept it waiting for too long."""

    def __init__(self, connections: Iterable[Any], longest: float = LONGEST_REQUEST, every: float = LOOK_EVERY) -> None:
        self._connections = connections
        self._longest = longest
        self._every = every

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._every)
            self.look(monotonic())

    def look(self, now: float) -> None:
        for connection in list(self._connections):
            since = getattr(connection, "waiting_since", None)
            if since is not None and now - since > self._longest:
                connection.give_up(408, f"the request did not come within {self._longest:.0f} s: send it at once")
