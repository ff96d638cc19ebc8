"""Checks without ASGI: a connection that answers them as soon as their last byte is there.

For each request uvicorn makes a scope, an event, a task and a cycle, and sends the answer in two messages. That is
right for an application that waits, and most of what a check on a store of this machine costs, which does not. So a
POST to a path that can be answered at once is held back until it is complete, and then answered in one call and one
write.
Whatever is out of the ordinary (the store is busy, the request is one of several in a row, its body is large, its
client reads slowly) goes the usual way as if nothing had happened: nothing has, until the answer is there.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headgate.service.protocol import Connection

if TYPE_CHECKING:
    from headgate.service.dispatch import Dispatch

__all__ = ["QuickConnection"]

CLOSE = b"connection: close\r\n"

MOST_HELD = 16 * 1024
"""Bytes of a body: a larger one is no matter of one call, and is refused the usual way when it is too large."""


class QuickConnection(Connection):
    """A connection that answers checks itself."""

    held: list[tuple[bytes, bytes]] | None = None
    """The headers of a request that is held back until it is complete; None while there is none."""
    body: bytes | bytearray = b""
    last = False
    """Whether the connection is to be closed after what is held back."""
    over = False
    """Whether the last answer was given: what stands behind its request is not read."""
    known_always: tuple[object, bytes] = (None, b"")

    def on_message_begin(self) -> None:
        """Without a scope, which only requests need that go the usual way."""
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        self.waiting_since = monotonic()
        self.idle_since = None
        self.taken = 0
        self.most = Connection.most
        if self.received and not self.unanswered:
            self.received = 0
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        if self.over:
            return
        if (
            self.url in cast("Dispatch", self.app).quick
            and self.parser.get_method() == b"POST"
            and not self.unanswered
            and not self.pipeline
            and not self.expect_100_continue
            and not self.flow.write_paused
            and not self.parser.should_upgrade()
            and self.parser.get_http_version() != "0.9"
        ):
            self.held = self.headers
            self.body = b""
            self.head_done()
            return
        self.go_the_usual_way(self.headers)

    def header_count(self) -> int:
        return super().header_count() if self.held is None else len(self.held)

    @property
    def answering(self) -> bool:
        return self.held is None and super().answering

    def on_body(self, body: bytes) -> None:
        if self.over:
            return
        if self.held is None:
            super().on_body(body)
            return
        if not self.body:
            self.body = body
        else:
            self.body = bytearray(self.body) if isinstance(self.body, bytes) else self.body
            self.body += body
        if len(self.body) > MOST_HELD:
            self.let_go()

    def on_message_complete(self) -> None:
        held = self.held
        if self.over:
            return
        if held is not None:
            answered = cast("Dispatch", self.app).at_once(self.url, held, self.client, bytes(self.body))
            if answered is not None:
                self.held = None
                self.waiting_since = None
                self.respond(*answered)
                return
            self.let_go()
        super().on_message_complete()

    def let_go(self) -> None:
        """What was held back goes the usual way, and what follows of it too."""
        held, self.held = self.held, None
        assert held is not None
        self.go_the_usual_way(held)
        if self.last:
            self.cycle.keep_alive = False
        if self.body:
            super().on_body(bytes(self.body))

    def go_the_usual_way(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Make up for the scope."""
        url, expects, since = self.url, self.expect_100_continue, self.waiting_since
        taken, received = self.taken, self.received
        super().on_message_begin()
        self.url, self.expect_100_continue, self.waiting_since = url, expects, since
        self.taken, self.received = taken, received
        self.headers += headers
        super().on_headers_complete()

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        """Write a whole response, and wait for the next request."""
        stays = self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0" and not self.last
        self.transport.write(
            b"%b%b%b%bcontent-length: %d\r\n\r\n%b"
            % (STATUS_LINE[status], self.always(), b"" if stays else CLOSE, head, len(body), body)
        )
        self.server_state.total_requests += 1
        self.idle_since = monotonic()
        if self.counted:
            self.answered()
        if not stays:
            self.over = True
            self.transport.close()

    def always(self) -> bytes:
        """What the server says on every answer: the date, which it renews every second."""
        headers = self.server_state.default_headers
        known = QuickConnection.known_always
        if known[0] is not headers:
            known = (headers, b"".join([b"%b: %b\r\n" % header for header in headers]))
            QuickConnection.known_always = known
        return known[1]

    def shutdown(self) -> None:
        """A request that is half there is still answered."""
        if self.held is None:
            super().shutdown()
        else:
            self.last = True
