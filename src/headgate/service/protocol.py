"""uvicorn's connections, with what it does not do: bound what a client may send, give up on who sends or reads too
slowly, and answer what is no HTTP in the same words as everything else.

A client that opens a connection and sends nothing, or its headers and body byte by byte, costs a descriptor and some
memory for as long as it likes: with a few thousand of them nobody else gets in. `Patience` looks at all connections
every few seconds and closes those whose request was begun and not finished in time. Requests themselves pay for that
with one look at the clock.

Headers are kept until they are complete, so they have a bound, and so has what stands behind a chunked body. It is
counted by the piece, which is why the bounds are not exact to the byte; a request that comes in one small piece, as
nearly all do, is not counted at all. Bodies need no bound here: what nobody asks for is not read, or not kept.
How much is read at a time, and how much all connections may hold together, is in pacing.py.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from time import monotonic
from typing import Any

import httptools

from headgate.http.problem import CONTENT_TYPE, encode_problem, problem
from headgate.service.pacing import MIN_COUNTED, PIECE, SMALL_PIECE, PacedConnection

__all__ = ["Connection", "Patience"]

LONGEST_REQUEST = 20.0
"""Seconds from the first byte of a request, or from the connection if there was none yet, to its last byte."""
LONGEST_ANSWER = 60.0
"""Seconds that a client may leave an answer unread."""
LOOK_EVERY = 2.0
MOST_HEAD = 64 * 1024
"""Of a request's first line and headers. What is a few pieces longer may still pass; what is shorter always does."""
MOST_CHUNK = 2 * 1024 * 1024
"""Of one chunk of a body, and of all that stands between two."""
NO_BOUND = 2**63
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class Dropped(list[tuple[bytes, bytes]]):
    """Takes what comes behind a body: it is no header, since who looked at those did not see it."""

    def append(self, _: tuple[bytes, bytes]) -> None:
        pass


DROPPED = Dropped()


class Connection(PacedConnection):
    """A connection whose client has bounds: of what it sends, and of how long it takes."""

    taken = 0
    """Bytes of the head, or of the chunk, that is under way, or somewhat more."""
    most = MOST_HEAD + PIECE

    def take(self, piece: bytes) -> None:
        """Read on, in what came."""
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            self.stay(piece[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.give_up(400, "this is no HTTP/1.1 request: send one")
            return
        if self.waiting_since is not None:
            self.taken += len(piece)
            if self.taken > self.most:
                self.too_much()
            elif not self.answering:
                self.count_request(len(piece))
        elif len(piece) > MIN_COUNTED and self.unanswered:
            self.count_request(len(piece))

    def piece_size(self) -> int:
        return PIECE if self.most == NO_BOUND else SMALL_PIECE

    def header_count(self) -> int:
        if self.headers is DROPPED:  # all have come, and the request has them
            return len(list(self.scope["headers"]))
        return len(self.headers or ())

    def stay(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 with who offers another protocol, as some clients do on every connection. The parser left
        the body to that protocol, so the request is read once more without the offer."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.give_up(405, "this is no proxy: there is nothing to connect to")
            return
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's: it is not read
        self.take(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        self.waiting_since = monotonic()
        self.taken = 0
        self.most = MOST_HEAD + PIECE
        if self.received and not self.unanswered:
            self.received = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self.parser.get_http_version() == "0.9":  # a first line that broke off, and where it did is anybody's guess
            raise ValueError("HTTP/0.9")
        if not self.url.startswith(b"/"):
            self.use_target_host()
        super().on_headers_complete()
        self.head_done()

    def use_target_host(self) -> None:
        """The host of an absolute target (`GET http://host/path`) is the one that counts (RFC 9112, section 3.2.2): it
        takes the place of the header's, and is checked as that is. A header that is missing or there twice stays so."""
        target = _ABSOLUTE.match(self.url)
        if target is None:
            return
        hosts = [place for place, (name, _) in enumerate(self.headers) if name == b"host"]
        if len(hosts) == 1:
            self.headers[hosts[0]] = (b"host", target[1])
        elif not hosts and self.parser.get_http_version() == "1.0":
            self.headers.append((b"host", target[1]))

    def head_done(self) -> None:
        """The head was taken over: what else comes is body, or to be dropped."""
        self.most = NO_BOUND
        self.headers = DROPPED

    def on_chunk_header(self) -> None:
        self.work += 1
        self.taken = 0
        self.most = MOST_CHUNK

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
        """Whether an answer has begun to the request whose body is under way. One to a request before it is none."""
        return self.waiting_since is not None and self.most >= MOST_CHUNK and self.cycle.response_started

    def send_400_response(self, msg: str) -> None:
        self.give_up(400, "this is no HTTP/1.1 request: send one")

    def too_much(self) -> None:
        if self.most == MOST_CHUNK:
            self.give_up(413, f"a chunk of the body is larger than {MOST_CHUNK:,} bytes: send less at once")
        else:
            self.give_up(431, f"the headers are larger than {MOST_HEAD:,} bytes: send fewer or shorter ones")

    def give_up(self, status: int, detail: str) -> None:
        """Say why, unless an answer has begun, and hang up. Whole requests that came before are answered first."""
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
            idle = getattr(connection, "idle_since", None)
            if idle is not None and now - idle > connection.timeout_keep_alive:
                connection.transport.close()
            unread = getattr(connection, "unread_since", None)
            if unread is not None and now - unread > LONGEST_ANSWER:
                connection.transport.abort()
