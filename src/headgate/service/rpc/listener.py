"""Listens for gRPC on the event loop of a worker, until it is told to end.

Connections are accepted here and not by the loop: so it is known how many there are before they cost more than a
descriptor (also while TLS is not agreed on), a burst of them is accepted in parts, and a process that has no
descriptors left waits a moment rather than trying again and again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from contextlib import suppress
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_NODELAY, socket

from headgate.service.connections import ConnectionBudget, max_connections
from headgate.service.rpc import frames
from headgate.service.rpc.call import Method
from headgate.service.rpc.connection import IDLE, Connection
from headgate.service.rpc.memory import Memory
from headgate.service.rpc.scheduler import Scheduler

__all__ = ["Listener"]

BACKLOG = 2048
LOOK_EVERY = 5.0
"""Seconds between two looks for peers that have begun something and do not go on."""
LOOK_AT = 256
"""Connections that are looked at in one turn of the loop."""
MOST_SILENCE = 10.0
"""Seconds in which a peer must have said that it speaks HTTP/2."""
MOST_PATIENCE = 60.0
"""Seconds in which a call must have come, and in which its answer must have been taken."""
MAX_IDLE = 300.0
"""Seconds without calls after which a connection is closed. Pings are no calls."""
NEW = 1.0
"""Seconds in which a new connection is not among the first that have to make room: its first call is on its way."""
MAX_QUIET = 10.0
"""Seconds without a new call after which a connection may have to make room, even if a call is under way."""
LAST_CALL = 1.0
"""Seconds for peers to hear that the service ends, before nothing new is taken."""
MAX_ACCEPTED = 64
"""Connections that are accepted in one turn of the loop."""
ACCEPT_PAUSE = 0.1
"""Seconds without accepting, after the system refused a descriptor."""
WARN_EVERY = 60.0
"""Seconds between two log lines about connections that were refused."""
_log = logging.getLogger("headgate.grpc")


class Listener:
    """Answers calls of `methods`, by their paths."""

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        tls: ssl.SSLContext | None = None,
        budget: ConnectionBudget | None = None,
    ) -> None:
        """`budget` is shared with whoever else accepts connections in this process."""
        self.methods = dict(methods)
        self.connections: set[Connection] = set()
        self.streaming_calls = 0
        """Of all connections, see connection.py."""
        self.closed = False
        """Whether even those that are only now through with TLS come too late."""
        self.budget = ConnectionBudget(max_connections()) if budget is None else budget
        self.memory = Memory(self.budget)
        self._scheduler: Scheduler | None = None
        self._tls = tls
        self._listening: socket | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._searched = -MAX_QUIET
        """When there was last no connection that could make room."""
        self._warned = -WARN_EVERY

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def scheduler(self) -> Scheduler:
        if self._scheduler is None:
            self._scheduler = Scheduler(self.loop)
        return self._scheduler

    async def start(self, listening: socket) -> None:
        """Accept connections from a socket, which others may accept from as well."""
        listening.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)  # who goes without a word is noticed some day
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._listening = listening
        self.loop.add_reader(listening.fileno(), self._accept)
        self._watching = self.loop.create_task(self._watch())

    async def close(self, patience: float) -> None:
        """Take nothing new, answer what is under way in so many seconds, and cut off the rest; at once if cancelled."""
        listening, self._listening = self._listening, None
        if listening is None:
            return
        self.loop.remove_reader(listening.fileno())
        listening.close()  # whoever comes now is refused, or goes to another worker
        try:
            await self._last_answers(self.loop.time() + patience)
        finally:
            self.closed = True
            for opening in list(self._opening):
                opening.cancel()
            for connection in list(self.connections):
                connection.cut()
            if self._watching is not None:
                self._watching.cancel()

    async def _last_answers(self, deadline: float) -> None:
        for connection in list(self.connections):
            connection.leave()
        await self._gone(min(self.loop.time() + LAST_CALL, deadline))
        for connection in list(self.connections):
            connection.take_leave()
        await self._gone(deadline)

    async def _gone(self, deadline: float) -> None:
        while self.connections and self.loop.time() < deadline:
            await asyncio.sleep(0.01)

    # Connections that come.

    def _accept(self) -> None:
        listening = self._listening
        if listening is None:
            return
        for _ in range(MAX_ACCEPTED):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(listening, error)
                return
            if self._admit():
                opening = self.loop.create_task(self._open(accepted))
                self._opening.add(opening)
                opening.add_done_callback(self._opening.discard)
            else:
                accepted.close()
                self._warn(f"all {self.budget.connections('grpc')} connections are in use, and none is idle")

    async def _open(self, accepted: socket) -> None:
        connection = self._connection()
        opened = False
        try:
            with suppress(OSError):  # not every socket is one of TCP
                accepted.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            await self.loop.connect_accepted_socket(  # type: ignore[type-var]  # a protocol in all but its class
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=MOST_SILENCE if self._tls is not None else None,
            )
            opened = True
        except (TimeoutError, OSError):
            pass  # it has gone, or does not agree on TLS
        finally:
            if not opened:
                connection.release()
                accepted.close()

    def _connection(self) -> Connection:
        return Connection(self)

    def _pause_accepting(self, listening: socket, error: OSError) -> None:
        """The system has no descriptors, or no memory, for another connection."""
        self._warn(f"accept failed: {error.strerror}")
        self._evict()
        self.loop.remove_reader(listening.fileno())
        self.loop.call_later(ACCEPT_PAUSE, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._listening is not None:
            self.loop.add_reader(self._listening.fileno(), self._accept)

    def _admit(self) -> bool:
        """Whether there is room for another connection; idle ones make room."""
        if self.budget.admit("grpc"):
            return True
        self._evict()
        return self.budget.admit("grpc")

    def released(self) -> None:
        """A connection is not counted any longer."""
        self.budget.release("grpc")

    def _evict(self) -> None:
        """Close a few connections that have been idle for longest. Those that have had the time to make a call and did
        not go first; those with a call under way go last, and only if they have not begun one for a while."""
        now = self.loop.time()
        if now - self._searched < 1.0:
            return
        found = [
            (
                bool(connection.streams),
                connection.incoming.last > 0 or now - connection.since < NEW,
                connection.last_call_at,
                id(connection),
                connection,
            )
            for connection in self.connections
            if not connection.left and (not connection.streams or now - connection.last_call_at > MAX_QUIET)
        ]
        if not found:
            self._searched = now
        for *_, connection in sorted(found)[: 1 + len(found) // 64]:
            connection.evict()

    def _warn(self, reason: str) -> None:
        now = self.loop.time()
        if now - self._warned >= WARN_EVERY:
            self._warned = now
            _log.warning("gRPC connections are refused: %s", reason)

    # Connections that are there.

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            connections = list(self.connections)
            for start in range(0, len(connections), LOOK_AT):
                for connection in connections[start : start + LOOK_AT]:
                    self._look(connection, self.loop.time())
                await asyncio.sleep(0)

    def look(self, now: float) -> None:
        """Let go of peers that keep others from being served."""
        for connection in list(self.connections):
            self._look(connection, now)

    def _look(self, connection: Connection, now: float) -> None:
        connection.useless_frames = 0
        if not connection.incoming.greeted:
            if now - connection.since > MOST_SILENCE:
                connection.cut()
            return
        stuck_since = connection.stuck_since
        if stuck_since is not None and now - stuck_since > MOST_PATIENCE:
            connection.cut()
            return
        for stream in list(connection.streams.values()):
            waits = stream.trailers is not None or not (stream.complete or stream.method.streaming)
            if waits and now - stream.since > MOST_PATIENCE:
                connection.reset(stream.number, frames.CANCEL)
        if connection.streams:
            connection.active_at = now
        elif connection.leaving:
            connection.take_leave()
        elif now - connection.active_at > MAX_IDLE:
            connection.leave(IDLE)
        connection.flush()
