"""The fast path of checks: a connection that responds to them as soon as their last byte is there, without ASGI.

For each request uvicorn creates a scope, an event, a task and a cycle, and sends the response in two messages. That is
right for an application that waits, and most of what a check on a local store costs, which does not. So a POST to a
path that usually has its response at once is held until it is complete, and then handled in one call and one write.

Whatever is out of the ordinary (the request is one of several in a row, its body is large, its client reads slowly)
goes through ASGI as if nothing had happened. Where the store is busy, so does the call, which is not prepared again.
"""

from __future__ import annotations

from time import monotonic

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from crestgate.service.http.protocol import DROPPED_TRAILERS, UNBOUNDED, HttpConnection
from crestgate.service.http.router import PENDING, DeferredResponse, Router

__all__ = ["FastConnection"]

CLOSE = b"connection: close\r\n"

MAX_HELD = 16 * 1024
"""Bytes of a body on the fast path."""


class FastConnection(HttpConnection):
    """A connection that responds to checks itself."""

    app: Router
    version = "1.1"
    """The version of HTTP of the request that is held. The parser makes a text of it whenever it is asked."""
    held: list[tuple[bytes, bytes]] | None = None
    """The headers of a request that is held until it is complete; None while there is none."""
    body: bytes | bytearray = b""
    last = False
    """Whether the connection closes after the request that is held."""
    over = False
    """Whether the last response was sent: what follows its request is not parsed."""
    default_head: tuple[object, bytes] = (None, b"")
    """The server's default headers, and their lines."""

    def on_message_begin(self) -> None:
        """Without a scope, which only ASGI needs."""
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        self.waiting_since = monotonic()
        self.idle_since = None
        self.parsed = 0
        self.max_size = HttpConnection.max_size
        if self.received and not self.unanswered:
            self.received = 0
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        if self.over:
            return
        if (
            self.url in self.app.fast_paths
            and self.parser.get_method() == b"POST"
            and (self.cycle is None or self.cycle.response_complete)
            and not self.pipeline
            and not self.expect_100_continue
            and not self.flow.write_paused
            and not self.parser.should_upgrade()
            and (version := self.parser.get_http_version()) != "0.9"
        ):
            self.version = version
            self.held = self.headers
            self.body = b""
            self.max_size = UNBOUNDED
            self.headers = DROPPED_TRAILERS
            return
        self.start_asgi(self.headers)

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
        if len(self.body) > MAX_HELD:
            self.hand_over_to_asgi()

    def on_message_complete(self) -> None:
        held = self.held
        if self.over:
            return
        if held is not None:
            result = self.app.respond(self.url, held, self.client, bytes(self.body))
            if isinstance(result, tuple):
                self.held = None
                self.waiting_since = None
                self.respond(*result)
                return
            self.hand_over_to_asgi(result)
        super().on_message_complete()

    def hand_over_to_asgi(self, pending: DeferredResponse | None = None) -> None:
        """Handle the request that is held, and what follows of it, through ASGI."""
        held, self.held = self.held, None
        assert held is not None
        self.start_asgi(held, pending)
        if self.last:
            self.cycle.keep_alive = False
        if self.body:
            super().on_body(bytes(self.body))

    def start_asgi(self, headers: list[tuple[bytes, bytes]], pending: DeferredResponse | None = None) -> None:
        """Create the scope, and what else was left out."""
        url, expects, since = self.url, self.expect_100_continue, self.waiting_since
        parsed, received = self.parsed, self.received
        super().on_message_begin()
        self.url, self.expect_100_continue, self.waiting_since = url, expects, since
        self.parsed, self.received = parsed, received
        self.headers += headers
        if pending is not None:
            self.scope[PENDING] = pending  # type: ignore[typeddict-unknown-key]  # for the router
        super().on_headers_complete()

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        """Write a whole response, and wait for the next request."""
        stays = self.version != "1.0" and self.parser.should_keep_alive() and not self.last
        defaults = self.server_state.default_headers  # the date, which is renewed every second
        known = FastConnection.default_head
        if known[0] is not defaults:
            known = (defaults, b"".join([b"%b: %b\r\n" % header for header in defaults]))
            FastConnection.default_head = known
        self.transport.write(
            b"%b%b%b%bcontent-length: %d\r\n\r\n%b"
            % (STATUS_LINE[status], known[1], b"" if stays else CLOSE, head, len(body), body)
        )
        self.server_state.total_requests += 1
        self.idle_since = monotonic()
        if self.counted:
            self.answered()
        if not stays:
            self.over = True
            self.transport.close()

    def shutdown(self) -> None:
        """A request that is partly received is still answered."""
        if self.held is None:
            super().shutdown()
        else:
            self.last = True
