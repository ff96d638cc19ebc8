"""HTTP connections with what uvicorn does not have: size limits, timeouts, and problem documents for bad requests.

A client that opens a connection and sends nothing, or its headers and body byte by byte, costs a descriptor and some
memory for as long as it likes: with a few thousand of them nobody else gets in. `ConnectionTimeouts` looks at all
connections every few seconds and closes those whose request was not complete in time. A request pays for that with one
reading of the clock.

Headers are stored until they are complete, so their size is bounded, and so is that of chunk headers and trailers. It
is counted by the piece, which is why the bounds are not exact to the byte; a request that comes in one small piece, as
nearly all do, is not counted at all. Bodies need no bound here: they are read by the router, up to its limit.
How much is read at a time, and how much all connections may hold together, is in flow_control.py.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from time import monotonic
from typing import Any

import httptools

from crestgate.http.problem import CONTENT_TYPE, encode_problem, problem
from crestgate.service.http.flow_control import MIN_COUNTED, PIECE, SMALL_PIECE, PacedConnection

__all__ = ["ConnectionTimeouts", "HttpConnection"]

MAX_REQUEST_SECONDS = 20.0
"""Seconds from the first byte of a request, or from the connection if there was none yet, to its last byte."""
MAX_UNREAD_SECONDS = 60.0
"""Seconds that a client may leave an answer unread."""
CHECK_SECONDS = 2.0
MAX_HEAD_BYTES = 64 * 1024
"""Of a request's first line and headers. What is a few pieces longer may still pass; what is shorter always does."""
MAX_CHUNK_BYTES = 2 * 1024 * 1024
"""Of one chunk of a body, and of all that stands between two."""
UNBOUNDED = 2**63
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class DroppedTrailers(list[tuple[bytes, bytes]]):
    """Ignores trailers: what checked the headers did not see them."""

    def append(self, _: tuple[bytes, bytes]) -> None:
        pass


DROPPED_TRAILERS = DroppedTrailers()


class HttpConnection(PacedConnection):
    """A connection with bounds on the size and the duration of a request."""

    parsed = 0
    """Bytes of the current head or chunk, or somewhat more."""
    max_size = MAX_HEAD_BYTES + PIECE

    def take(self, piece: bytes) -> None:
        """Parse a piece of what was received."""
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            self.ignore_upgrade(piece[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.give_up(400, "this is no HTTP/1.1 request: send one")
            return
        if self.waiting_since is not None:
            self.parsed += len(piece)
            if self.parsed > self.max_size:
                self.refuse_size()
            elif not self.answering:
                self.count_request(len(piece))
        elif len(piece) > MIN_COUNTED and self.unanswered:
            self.count_request(len(piece))

    def piece_size(self) -> int:
        return PIECE if self.max_size == UNBOUNDED else SMALL_PIECE

    def header_count(self) -> int:
        if self.headers is DROPPED_TRAILERS:  # all have come, and the request has them
            return len(list(self.scope["headers"]))
        return len(self.headers or ())

    def ignore_upgrade(self, rest: bytes) -> None:
        """Stay with HTTP/1.1 if a client offers to upgrade, as some do on every connection. The parser left the body to
        the other protocol, so the request is parsed again without the offer."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.give_up(405, "CONNECT is not supported: this is not a proxy")
            return
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's: it is not read
        self.take(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        self.waiting_since = monotonic()
        self.parsed = 0
        self.max_size = MAX_HEAD_BYTES + PIECE
        if self.received and not self.unanswered:
            self.received = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self.parser.get_http_version() == "0.9":  # a first line that broke off, and where it did is anybody's guess
            raise ValueError("HTTP/0.9")
        if not self.url.startswith(b"/"):
            self.use_absolute_host()
        super().on_headers_complete()
        self.finish_head()

    def use_absolute_host(self) -> None:
        """The host of an absolute target (`GET http://host/path`) is the one that counts (RFC 9112, section 3.2.2): it
        takes the place of the header's, and is checked as that is. A header that is missing or there twice stays so."""
        target = _ABSOLUTE.match(self.url)
        if target is None:
            return
        hosts = [index for index, (name, _) in enumerate(self.headers) if name == b"host"]
        if len(hosts) == 1:
            self.headers[hosts[0]] = (b"host", target[1])
        elif not hosts and self.parser.get_http_version() == "1.0":
            self.headers.append((b"host", target[1]))

    def finish_head(self) -> None:
        """The head is complete: what follows is the body, and trailers, which are dropped."""
        self.max_size = UNBOUNDED
        self.headers = DROPPED_TRAILERS

    def on_chunk_header(self) -> None:
        self.work += 1
        self.parsed = 0
        self.max_size = MAX_CHUNK_BYTES

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self.waiting_since = None
        super().on_message_complete()

    def eof_received(self) -> bool:  # type: ignore[override]  # which may say that the connection stays
        """Who has sent a whole request and will send no other still gets its answer."""
        if not self.unanswered or self.waiting_since is not None or self.scheme != "http":
            return False
        self.cycle.keep_alive = False
        return True

    @property
    def answering(self) -> bool:
        """Whether the response to the request whose body is being received has begun."""
        return self.waiting_since is not None and self.max_size >= MAX_CHUNK_BYTES and self.cycle.response_started

    def send_400_response(self, msg: str) -> None:
        self.give_up(400, "this is no HTTP/1.1 request: send one")

    def refuse_size(self) -> None:
        if self.max_size == MAX_CHUNK_BYTES:
            self.give_up(413, f"a chunk of the body is larger than {MAX_CHUNK_BYTES:,} bytes: send less at once")
        else:
            self.give_up(431, f"the headers are larger than {MAX_HEAD_BYTES:,} bytes: send fewer or shorter ones")

    def give_up(self, status: int, detail: str) -> None:
        """Respond with an error, unless a response has begun, and close; after whole requests that came before."""
        if self.transport.is_closing():
            return
        if self.unanswered and not self.cycle.more_body:
            self.cycle.keep_alive = False
            self.failed = True
            self.flow.pause_reading()
            return
        if self.pipeline:
            return  # half a request behind others: they are answered first, and then nobody waits for its rest
        if not self.answering:
            members = problem(status, detail)
            body = encode_problem(members)
            head = (
                f"HTTP/1.1 {status} {members['title']}\r\ncontent-type: {CONTENT_TYPE}\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


class ConnectionTimeouts:
    """Closes the connections of one server whose clients send or read too slowly."""

    def __init__(
        self, connections: Iterable[Any], max_seconds: float = MAX_REQUEST_SECONDS, interval: float = CHECK_SECONDS
    ) -> None:
        self._connections = connections
        self._max_seconds = max_seconds
        self._interval = interval

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            self.close_timed_out(monotonic())

    def close_timed_out(self, now: float) -> None:
        for connection in list(self._connections):
            since = getattr(connection, "waiting_since", None)
            if since is not None and now - since > self._max_seconds:
                connection.give_up(408, f"request timeout: not fully received within {self._max_seconds:.0f} s")
            idle = getattr(connection, "idle_since", None)
            if idle is not None and now - idle > connection.timeout_keep_alive:
                connection.transport.close()
            unread = getattr(connection, "unread_since", None)
            if unread is not None and now - unread > MAX_UNREAD_SECONDS:
                connection.transport.abort()
