"""Received HTTP data in bounded portions: no connection holds up the others, or makes them run out of memory.

A client may send thousands of requests without reading an answer, or a body in chunks of one byte. What is received is
therefore processed one request at a time, and at most a small share of it in one turn of the event loop. The rest waits
in `pending`, and nothing is read from the socket until all of it has been processed. A request is not parsed before the
one in front of it is answered, nor while the client leaves answers unread. So a connection holds at most what one read
from its socket yields, one request (or two, where one ends and the next begins in the same piece), and one response.

What all connections hold together is counted in the budget of the worker. When it is used up, the connection that
holds most is closed, if that is not the one that asks. Small requests are not counted, so they pass also when there is
no room for large ones.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from crestgate.service.http.admission import NEVER_SERVED, SERVED, UNREAD, AdmittedConnection, ConnectionAdmission
from crestgate.service.http.asgi import MAX_BODY_BYTES

__all__ = ["MIN_COUNTED", "PIECE", "SMALL_PIECE", "Flow", "PacedConnection"]

PIECE = 16 * 1024
"""Bytes of a body that are parsed at once."""
SMALL_PIECE = 4 * 1024
"""The same of headers and of chunks: there may be a thousand of them in it."""
HEAD_END = b"\r\n\r\n"
MAX_TURN_BYTES = 64 * 1024
"""Bytes that are processed in one turn of the event loop. All connections with pending data share them."""
MAX_TURN_WORK = 512
"""The same in units of work: a request is REQUEST_WORK of them, a chunk of a body or a piece of data is one."""
REQUEST_WORK = 64
MAX_UNSENT = 16 * 1024
"""Bytes of responses that may wait for the client to read them before no further request of it is processed."""
MIN_COUNTED = 1024
"""Bytes of a request from which on it is counted as held."""
MAX_COUNTED = MAX_BODY_BYTES + 64 * 1024
"""Of one request: what goes beyond is not kept."""
HEADER_BYTES = 128
"""What each header costs in memory beside its bytes."""


class Flow(FlowControl):
    """uvicorn's flow control, which does not read on before the data that was received has been processed."""

    def __init__(self, transport: asyncio.Transport, connection: PacedConnection) -> None:
        super().__init__(transport)
        self._connection = connection

    def resume_reading(self) -> None:
        if self.read_paused:
            if self._connection.pending:
                self._connection.process_soon()
            else:
                super().resume_reading()


class PacedConnection(HttpToolsProtocol):
    """A connection that processes what it receives in portions. `take` parses one of them."""

    waiting_since: float | None = None
    """Since when its client owes the rest of a request; None: it does not."""
    idle_since: float | None = None
    """Since when it is open for nothing, where uvicorn has no timer for that."""
    unread_since: float | None = None
    """Since when the client has not read what it was answered."""
    pending: bytes = b""
    """Received data of which the part from `position` on is not processed yet. Reading is paused while there is any."""
    position = 0
    scheduled = False
    """Whether `process` is going to be called in the next turn of the event loop."""
    work = 0
    """Units of work done in this turn."""
    failed = False
    """Whether data came that cannot be parsed: nothing that follows it is looked at."""
    ending = False
    """Whether the connection is to be closed when pending data has been processed."""
    admitted = False
    """Whether the budget counts it as open."""
    admitting: AdmittedConnection | None = None
    """What was admitted in its place before it is connected: a TLS handshake."""
    received = 0
    """Bytes of the request under way, as far as it did not come in one small piece."""
    counted = 0
    """Bytes that the budget counts as held by this connection."""

    def __init__(self, *args: Any, admission: ConnectionAdmission | None = None, **options: Any) -> None:
        """Without `admission` it is counted by itself."""
        super().__init__(*args, **options)
        self.admission = admission if admission is not None else ConnectionAdmission()
        self.budget = self.admission.budget

    def take(self, piece: bytes) -> None:
        """Parse a piece of data, in which at most one head of a request ends."""
        raise NotImplementedError

    def piece_size(self) -> int:
        """How many bytes may be parsed at once: it depends on what is under way."""
        raise NotImplementedError

    def header_count(self) -> int:
        """How many headers of the request under way have come."""
        raise NotImplementedError

    def give_up(self, status: int, detail: str) -> None:
        """Say why, and close the connection."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=MAX_UNSENT)
        self.flow = Flow(transport, self)
        self.waiting_since = monotonic()
        if self.admitting is not None:
            self.admission.replace(self.admitting, self)
            self.admitting = None
        elif not self.admission.admit(self):
            self.give_up(503, "too many connections are open: try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        self.pending = b""
        self.budget.free("http", self.counted)
        self.counted = 0
        self.admission.release(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        if (
            (cycle is None or cycle.response_complete)
            and len(data) <= SMALL_PIECE
            and not self.pending
            and not self.flow.write_paused
            and data.count(HEAD_END) <= 1
        ):
            self.take(data)  # a request that comes by itself, as nearly all do
            return
        if self.pending:  # TLS may deliver what it has decrypted although reading is paused
            data = self.pending[self.position :] + data
        self.consume(data, 0)

    def blocked(self) -> bool:
        """Whether received data has to wait: a request is being answered, its body is not read, or answers are not."""
        if self.flow.write_paused or self.failed:
            return True
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        return self.waiting_since is None or len(cycle.body) > HIGH_WATER_LIMIT

    def consume(self, data: bytes, start: int) -> None:
        """Process data from `start` on, up to a turn's share, and keep the rest as pending."""
        self.work = 0
        end = len(data)
        busy = 1 + self.admission.scheduled
        max_work = MAX_TURN_WORK // busy
        turn_end = start + MAX_TURN_BYTES // busy
        while start < end and not self.transport.is_closing():
            if self.blocked():
                self.hold(data, start)
                return
            if start >= turn_end or self.work > max_work:
                self.hold(data, start)
                self.process_soon()
                return
            piece_end = start + self.piece_size()
            end_of_head = data.find(HEAD_END, start, piece_end)
            if end_of_head >= 0:
                piece_end = end_of_head + len(HEAD_END)
                self.work += REQUEST_WORK
            self.work += 1
            self.take(data[start:piece_end])
            start = piece_end
        if self.pending:
            self.pending = b""
            self.count()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.ending:
            self.shutdown()

    def hold(self, data: bytes, position: int) -> None:
        """Keep data from `position` on until it can be processed, and read nothing more meanwhile."""
        self.flow.pause_reading()
        self.position = position
        if self.pending is not data:
            self.pending = data
            self.count()

    def process_soon(self) -> None:
        """Process pending data in the next turn of the event loop."""
        if not self.scheduled:
            self.scheduled = True
            self.admission.scheduled += 1
            self.loop.call_soon(self.process)

    def process(self) -> None:
        self.scheduled = False
        self.admission.scheduled -= 1
        if self.pending and not self.blocked():
            self.consume(self.pending, self.position)

    def shutdown(self) -> None:
        """Requests that have been received are still answered."""
        if self.pending:
            self.ending = True
        else:
            super().shutdown()

    def on_response_complete(self) -> None:
        if self.counted or self.received:
            self.answered()
        super().on_response_complete()

    def answered(self) -> None:
        """The request is answered: it is not held any more."""
        self.received = 0
        self.count()

    def count_request(self, size: int) -> None:
        """So many more bytes of the request under way have come."""
        self.received += size
        if self.received >= MIN_COUNTED:
            self.count()

    def count(self) -> None:
        """Have the budget count what the connection holds. Where that is too much for all of them together, close the
        one that holds most."""
        held = len(self.pending)
        if self.received >= MIN_COUNTED:
            held += min(self.received, MAX_COUNTED) + HEADER_BYTES * self.header_count()
        if self.flow.write_paused:
            held += self.transport.get_write_buffer_size()
        if held <= self.counted:
            self.budget.free("http", self.counted - held)
        elif not self.budget.hold("http", held - self.counted):
            self.work += MAX_TURN_WORK  # all connections are looked at
            if not (self.admission.free_memory(held) and self.budget.hold("http", held - self.counted)):
                self.refuse_to_hold()
                return
        self.counted = held

    @property
    def releasable(self) -> bool:
        """Whether closing it frees what it holds: not while a whole request is being answered."""
        return not self.failed and (self.waiting_since is not None or self.unread_since is not None)

    def refuse_to_hold(self) -> None:
        """Close it because of what it holds, or was about to hold."""
        self.pending = b""
        if self.headers:
            self.headers.clear()  # now, and not only when the connection is closed
        if self.flow.write_paused or self.pipeline:
            self.transport.abort()
        else:
            self.give_up(503, "the requests under way take too much memory together: try again later")
        if self.transport.is_closing():
            self.budget.free("http", self.counted)
            self.counted = 0

    def pause_writing(self) -> None:
        self.unread_since = monotonic()
        super().pause_writing()
        self.count()

    def resume_writing(self) -> None:
        self.unread_since = None
        super().resume_writing()
        if self.counted:
            self.count()
        if self.pending:
            self.process_soon()

    @property
    def unanswered(self) -> bool:
        """Whether the last request that was begun waits for its answer, or for the rest of it."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def eviction_rank(self) -> int:
        """How soon it is closed to make room, when it waits for its client."""
        if self.unread_since is not None:
            return UNREAD
        return NEVER_SERVED if self.cycle is None and self.idle_since is None else SERVED

    def inactive_since(self) -> float | None:
        """Since when it waits for its client to send or to read; None while the client waits for it."""
        if self.unread_since is not None:
            return self.unread_since
        if self.pending:
            return None
        if self.waiting_since is not None:
            return self.waiting_since
        if self.unanswered:
            return None
        timer = self.timeout_keep_alive_task
        return self.idle_since if timer is None else timer.when() - self.timeout_keep_alive

    def evict(self) -> None:
        """Close it to make room for another connection."""
        self.transport.abort()
