# mypyc: compile
"""One RESP connection as an asyncio protocol: what it reads, writes and holds, and when it ends.

All commands that one read brings are one turn (see turn.py), and their replies one write. What a peer can cause is
bounded: input is handled in slices, in turns with the other connections (runtime/scheduler.py); a peer is not read from
while its commands are being decided, and not while it leaves replies unread; the bytes that it holds are counted
together with those of all others.
"""

from __future__ import annotations

import logging
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, final

from crestgate.runtime.scheduler import SLICE_WORK, WORK_PER_SECOND
from crestgate.service.resp.encoder import encode_error
from crestgate.service.resp.parser import Parser
from crestgate.service.resp.session import Session
from crestgate.service.resp.turn import DONE, MAX_TURN_COMMANDS, WAITS, Turn

if TYPE_CHECKING:
    from crestgate.service.resp.listener import RespListener

__all__ = ["FREE_BYTES", "RespConnection"]

MAX_UNSENT: Final = 16 * 1024
"""Bytes of replies that may wait for the peer to read them before no further command of it is handled."""
FREE_BYTES: Final = 4 * 1024
"""Bytes that a connection may hold without being counted: small commands pass also when there is no room for more."""
COMMAND_WORK: Final = SLICE_WORK // (2 * MAX_TURN_COMMANDS)
"""Units of work (see runtime/scheduler.py) of a counter that is decided."""
NOT_HTTP: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"This port speaks RESP, the protocol of Redis; the HTTP API of Crestgate is on another port.\n"
)
_log = logging.getLogger("crestgate.resp")


@final
class RespConnection:
    """The asyncio protocol of one connection (not a subclass of asyncio.Protocol, which could not be compiled)."""

    def __init__(self, listener: RespListener) -> None:
        self.opened_at = listener.loop.time()
        self.active_at = self.opened_at
        """When something was last received."""
        self.blocked_since: float | None = None
        """Since when the peer does not read."""
        self.served = False
        """Whether it has sent a whole command."""
        self.counted = 0
        """Bytes that the budget counts as held."""
        self._listener = listener
        self._loop = listener.loop
        self._scheduler = listener.scheduler
        self._transport: Any = None
        self._parser = Parser()
        self._session: Session | None = None
        self._turn: Turn | None = None
        """Commands that are being answered."""
        self._waiting = False
        """Whether a task awaits the turn."""
        self._queued = False
        """Whether the scheduler has this connection in a queue."""
        self._reading_paused = False
        self._draining = False
        """Whether it is closed when what was received is answered."""
        self._admitted = True
        """Whether the listener counts this connection."""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do: a command may be incomplete."""
        return self._turn is None and not self._queued and self.blocked_since is None

    @property
    def is_partial(self) -> bool:
        """Whether the rest of a command is missing."""
        return self.is_idle and self._parser.size > 0

    # asyncio's protocol.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._listener.closed:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=MAX_UNSENT)
        peer = transport.get_extra_info("peername")
        self._session = self._listener.service.open_session(peer[0] if isinstance(peer, tuple) and peer else None)
        self._listener.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._is_closing():
            return
        if self._parser.size == 0:
            self.active_at = self._loop.time()
        self._parser.feed(data)
        if not self.is_idle:
            self._pause_reading()
            self._count()
        elif self._scheduler.may_run():
            self._handle()
        else:
            self._enqueue(True)

    def eof_received(self) -> bool | None:
        """Who has sent commands and will send no more still gets the replies."""
        if self.is_idle or self._transport.get_extra_info("sslcontext") is not None:
            return None
        self._draining = True
        return True

    def pause_writing(self) -> None:
        self.blocked_since = self._loop.time()
        self._count()

    def resume_writing(self) -> None:
        self.blocked_since = None
        if not self._is_closing():
            self._continue()

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.connections.discard(self)
        self.release()
        self._transport = None
        self._parser.clear()
        self._listener.hold(self, 0)

    # Commands.

    def run_slice(self) -> None:
        """It is this connection's turn."""
        self._queued = False
        if self._is_closing():
            self._parser.clear()
        elif self.blocked_since is None:
            self._handle()

    def _handle(self) -> None:
        """Handle a slice of the input."""
        started = perf_counter()
        session = self._session
        assert session is not None
        work = COMMAND_WORK
        try:
            turn = self._turn
            if turn is None:
                commands = self._parser.read(MAX_TURN_COMMANDS)
                if commands:
                    turn = Turn(self._listener.service, session, commands)
            if turn is not None:
                self.served = True
                state = turn.advance()
                work += COMMAND_WORK * turn.work
                self._turn = None if state == DONE else turn
                if state == DONE:
                    self._write(turn.replies)
                elif state == WAITS:
                    self._waiting = True
                    self._listener.start(self._await(turn))
        except Exception:  # noqa: BLE001 - a bug must not leave a connection half open
            _log.exception("unhandled error in RESP connection")
            self.abort()
        self._scheduler.add_work(max(work, int((perf_counter() - started) * WORK_PER_SECOND)))
        self._continue()

    async def _await(self, turn: Turn) -> None:
        """Await a turn that cannot be answered at once."""
        try:
            await turn.wait()
        finally:
            self._waiting = False
        if not self._is_closing():
            self._enqueue(False)  # the connection goes on when it is its turn

    def _continue(self) -> None:
        """Go on with what there is to do next."""
        session, parser = self._session, self._parser
        if self._is_closing() or session is None:
            return
        if self._waiting or self.blocked_since is not None:
            if parser.size:
                self._pause_reading()
        elif session.closing:
            self._close()
            return
        elif self._turn is not None or parser.has_more:
            self._enqueue(False)
        elif parser.error is not None:
            self._refuse_input(parser.error)
            return
        elif self._draining:
            self._close()
            return
        elif self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()
        self._count()

    def _enqueue(self, new: bool) -> None:
        self._pause_reading()
        if not self._queued:
            self._queued = True
            self._scheduler.enqueue(self, new)

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self._is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def _write(self, replies: list[bytes]) -> None:
        if not self._is_closing():
            self._transport.write(replies[0] if len(replies) == 1 else b"".join(replies))

    def _refuse_input(self, error: str) -> None:
        """The input breaks the protocol: say so, and close."""
        self._write([NOT_HTTP if self._parser.is_http else encode_error("ERR", error)])
        self._close()

    # What it holds.

    def _count(self) -> None:
        """Have the bytes counted that are held. The connection is closed if that is too much for all together."""
        held = self._parser.size
        if self.blocked_since is not None and self._transport is not None:
            held += self._transport.get_write_buffer_size()
        if held <= FREE_BYTES:
            held = 0
        if held != self.counted and not self._listener.hold(self, held):
            self.close_for_memory()

    def close_for_memory(self) -> None:
        """Close the connection now, for the bytes that it holds."""
        self._parser.clear()
        if self.blocked_since is None:
            self._write([encode_error("BUSY", "all connections together hold too many bytes: try again later")])
            self._close()
        else:
            self.abort()
        self._listener.hold(self, 0)

    # The end.

    def release(self) -> None:
        """Stop counting this connection as open. Calling it again does nothing."""
        if self._admitted:
            self._admitted = False
            self._listener.release()

    def drain(self) -> None:
        """Answer what was received, and close."""
        self._draining = True
        if self.is_idle:
            self._close()

    def evict(self) -> None:
        """Close the connection now, to make room for another."""
        self.release()
        self.abort()

    def abort(self) -> None:
        """Close the socket, whatever is in progress."""
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        if not self._is_closing():
            self._transport.close()

    def _is_closing(self) -> bool:
        return self._transport is None or bool(self._transport.is_closing())
