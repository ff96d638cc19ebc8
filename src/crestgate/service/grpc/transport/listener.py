"""The gRPC listener of a worker: accepts connections, and closes idle, stalled and excess ones.

It accepts connections itself rather than through the loop. So their number is known before they cost more than a file
descriptor (also before TLS is established), a burst is accepted in parts, and a process without free descriptors waits
a moment instead of retrying in a busy loop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_NODELAY, socket

from crestgate.runtime.connection_budget import ConnectionBudget, max_connections
from crestgate.runtime.scheduler import Scheduler
from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.call import Method
from crestgate.service.grpc.transport.connection import IDLE, Http2Connection
from crestgate.service.grpc.transport.memory import MemoryBudget

__all__ = ["GrpcListener"]

BACKLOG = 2048
CHECK_INTERVAL = 5.0
"""Seconds between two checks for stalled and idle peers."""
CHECKED_PER_TURN = 256
"""Connections that are checked in one iteration of the loop."""
PREFACE_TIMEOUT = 10.0
"""Seconds for the TLS handshake, and for the HTTP/2 preface."""
STALL_TIMEOUT = 60.0
"""Seconds for a request to be complete, and for its response to be read."""
IDLE_TIMEOUT = 300.0
"""Seconds without calls after which a connection is closed. Pings do not count."""
NEW_SECONDS = 1.0
"""Age up to which a connection without calls is not evicted first: its first call is on its way."""
QUIET_SECONDS = 10.0
"""Seconds without a new call after which a connection with open calls may be evicted."""
DRAIN_SECONDS = 1.0
"""Time for peers to see that the service shuts down, before new calls are refused."""
ACCEPTED_PER_TURN = 64
"""Connections that are accepted in one iteration of the loop."""
ACCEPT_PAUSE = 0.1
"""Seconds without accepting, after the system had no descriptor."""
WARN_INTERVAL = 60.0
"""Seconds between two log lines about refused connections."""
_log = logging.getLogger("crestgate.grpc")


class GrpcListener:
    """Serves `methods`, by their paths."""

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        tls: Callable[[], ssl.SSLContext] | None = None,
        budget: ConnectionBudget | None = None,
    ) -> None:
        """`tls` returns the context of the next connection; `budget` is shared with the other listeners of this
        process."""
        self.methods = dict(methods)
        self.connections: set[Http2Connection] = set()
        self.streaming_calls = 0
        """Of all connections, see connection.py."""
        self.closed = False
        """Whether connections that complete TLS only now are aborted."""
        self.budget = ConnectionBudget(max_connections()) if budget is None else budget
        self.memory = MemoryBudget(self.budget)
        self._scheduler: Scheduler | None = None
        self._tls = tls
        self._listening: socket | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._searched_at = -QUIET_SECONDS
        """When no connection could be evicted."""
        self._warned_at = -WARN_INTERVAL

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def scheduler(self) -> Scheduler:
        if self._scheduler is None:
            self._scheduler = Scheduler(self.loop)
        return self._scheduler

    async def start(self, listening: socket) -> None:
        """Accept connections from a socket, which other workers may share."""
        listening.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)  # so dead peers are noticed
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._listening = listening
        self.loop.add_reader(listening.fileno(), self._accept)
        self._watcher = self.loop.create_task(self._watch())

    async def close(self, timeout: float) -> None:
        """Drain all connections for up to `timeout` seconds, and abort the rest; at once if cancelled."""
        listening, self._listening = self._listening, None
        if listening is None:
            return
        self.loop.remove_reader(listening.fileno())
        listening.close()  # new connections are refused, or go to another worker
        try:
            await self._drain(self.loop.time() + timeout)
        finally:
            self.closed = True
            for opening in list(self._opening):
                opening.cancel()
            for connection in list(self.connections):
                connection.abort()
            if self._watcher is not None:
                self._watcher.cancel()

    async def _drain(self, deadline: float) -> None:
        for connection in list(self.connections):
            connection.drain()
        await self._wait_closed(min(self.loop.time() + DRAIN_SECONDS, deadline))
        for connection in list(self.connections):
            connection.finish_drain()
        await self._wait_closed(deadline)

    async def _wait_closed(self, deadline: float) -> None:
        while self.connections and self.loop.time() < deadline:
            await asyncio.sleep(0.01)

    # New connections.

    def _accept(self) -> None:
        listening = self._listening
        if listening is None:
            return
        for _ in range(ACCEPTED_PER_TURN):
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
                self._warn(f"all {self.budget.connections('grpc')} connections are in use")

    async def _open(self, accepted: socket) -> None:
        connection = self._create_connection()
        tls = self._tls
        opened = False
        try:
            with suppress(OSError):  # only TCP sockets have it
                accepted.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            await self.loop.connect_accepted_socket(  # type: ignore[type-var]  # a protocol by its methods
                lambda: connection,
                accepted,
                ssl=None if tls is None else tls(),
                ssl_handshake_timeout=None if tls is None else PREFACE_TIMEOUT,
            )
            opened = True
        except (TimeoutError, OSError):
            pass  # disconnected, or a failed handshake
        finally:
            if not opened:
                connection.release()
                accepted.close()

    def _create_connection(self) -> Http2Connection:
        return Http2Connection(self)

    def _pause_accepting(self, listening: socket, error: OSError) -> None:
        """The system has no descriptor, or no memory, for another connection."""
        self._warn(f"accept failed: {error.strerror}")
        self._evict()
        self.loop.remove_reader(listening.fileno())
        self.loop.call_later(ACCEPT_PAUSE, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._listening is not None:
            self.loop.add_reader(self._listening.fileno(), self._accept)

    def _admit(self) -> bool:
        """Count a new connection, evicting idle ones if needed; False if there is no room."""
        if self.budget.admit("grpc"):
            return True
        self._evict()
        return self.budget.admit("grpc")

    def release(self) -> None:
        """Stop counting a connection."""
        self.budget.release("grpc")

    def _evict(self) -> None:
        """Close the connections that have been idle for longest. Those that never made a call go first; those with open
        calls go last, and only if they have not started one for a while."""
        now = self.loop.time()
        if now - self._searched_at < 1.0:
            return
        candidates = [
            (
                bool(connection.streams),
                connection.last_stream_id > 0 or now - connection.opened_at < NEW_SECONDS,
                connection.last_call_at,
                id(connection),
                connection,
            )
            for connection in self.connections
            if not connection.goaway_sent and (not connection.streams or now - connection.last_call_at > QUIET_SECONDS)
        ]
        if not candidates:
            self._searched_at = now
        for *_, connection in sorted(candidates)[: 1 + len(candidates) // 64]:
            connection.evict()

    def _warn(self, reason: str) -> None:
        now = self.loop.time()
        if now - self._warned_at >= WARN_INTERVAL:
            self._warned_at = now
            _log.warning("gRPC connections refused: %s", reason)

    # Open connections.

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            connections = list(self.connections)
            for start in range(0, len(connections), CHECKED_PER_TURN):
                for connection in connections[start : start + CHECKED_PER_TURN]:
                    self._check(connection, self.loop.time())
                await asyncio.sleep(0)

    def check_connections(self, now: float) -> None:
        """Close idle and stalled connections."""
        for connection in list(self.connections):
            self._check(connection, now)

    def _check(self, connection: Http2Connection, now: float) -> None:
        connection.useless_frames = 0
        if not connection.receiver.preface_received:
            if now - connection.opened_at > PREFACE_TIMEOUT:
                connection.abort()
            return
        blocked_since = connection.blocked_since
        if blocked_since is not None and now - blocked_since > STALL_TIMEOUT:
            connection.abort()
            return
        for stream in list(connection.streams.values()):
            stalled = stream.trailers is not None or not (stream.complete or stream.method.streaming)
            if stalled and now - stream.started_at > STALL_TIMEOUT:
                connection.reset_stream(stream.stream_id, frames.CANCEL)
        if connection.streams:
            connection.active_at = now
        elif connection.draining:
            connection.finish_drain()
        elif now - connection.active_at > IDLE_TIMEOUT:
            connection.drain(IDLE)
        connection.flush()
