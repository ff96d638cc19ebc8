"""The RESP listener of a worker: accepts connections, and closes idle, stalled and excess ones.

It accepts connections itself rather than through the loop, as that of gRPC does and for the same reasons: their number
is known before they cost more than a file descriptor, also before TLS is established, and a burst is accepted in parts.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_NODELAY, socket
from typing import Any

from crestgate.runtime.connection_budget import ConnectionBudget, max_connections
from crestgate.runtime.scheduler import SLICE_WORK, Scheduler
from crestgate.service.resp.connection import RespConnection
from crestgate.service.resp.turn import RespService

__all__ = ["RespListener"]

BACKLOG = 2048
CHECK_INTERVAL = 5.0
"""Seconds between two checks for stalled and idle peers."""
CHECKED_PER_TURN = 256
"""Connections that are checked in one iteration of the loop."""
HANDSHAKE_TIMEOUT = 10.0
COMMAND_TIMEOUT = 20.0
"""Seconds for a command to be complete."""
UNREAD_TIMEOUT = 60.0
"""Seconds for replies to be read."""
IDLE_TIMEOUT = 600.0
"""Seconds without a command. Clients keep connections in pools, and open another one in the place of a closed one."""
NEW_SECONDS = 1.0
"""Age up to which a connection without commands is not evicted first: its first command is on its way."""
ACCEPTED_PER_TURN = 64
"""Connections that are accepted in one iteration of the loop."""
ACCEPT_PAUSE = 0.1
"""Seconds without accepting, after the system had no descriptor."""
WARN_INTERVAL = 60.0
"""Seconds between two log lines about refused connections."""
_log = logging.getLogger("crestgate.resp")


class RespListener:
    """Serves the commands of `service`."""

    def __init__(
        self,
        service: RespService,
        tls: Callable[[], ssl.SSLContext] | None = None,
        budget: ConnectionBudget | None = None,
    ) -> None:
        """`tls` returns the context of the next connection; `budget` is shared with the other listeners of this
        process."""
        self.service = service
        self.connections: set[RespConnection] = set()
        self.closed = False
        """Whether connections that complete TLS only now are aborted."""
        self.loop = asyncio.get_running_loop()
        self.scheduler = Scheduler(self.loop)
        self.budget = ConnectionBudget(max_connections()) if budget is None else budget
        self._tls = tls
        self._listening: socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._searched_at = -1.0
        """When no connection could be evicted."""
        self._warned_at = -WARN_INTERVAL

    def listen(self, listening: socket) -> None:
        """Accept connections from a socket, which other workers may share."""
        listening.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)  # so dead peers are noticed
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._listening = listening
        self.loop.add_reader(listening.fileno(), self._accept)
        self._watcher = self.loop.create_task(self._watch())

    async def close(self, timeout: float) -> None:
        """Answer what was received for up to `timeout` seconds, and abort the rest; at once if cancelled."""
        listening, self._listening = self._listening, None
        if listening is None:
            return
        self.loop.remove_reader(listening.fileno())
        listening.close()  # new connections are refused, or go to another worker
        try:
            deadline = self.loop.time() + timeout
            for connection in list(self.connections):
                connection.drain()
            while self.connections and self.loop.time() < deadline:
                await asyncio.sleep(0.01)
        finally:
            self.closed = True
            for connection in list(self.connections):
                connection.abort()
            if self._watcher is not None:
                self._watcher.cancel()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it as a task. It is not cancelled when its connection closes: what it has begun is counted."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
                self.start(self._open(accepted))
            else:
                accepted.close()
                self._warn(f"all {self.budget.connections('resp')} connections are in use")

    async def _open(self, accepted: socket) -> None:
        connection = RespConnection(self)
        tls = self._tls
        opened = False
        try:
            with suppress(OSError):  # only TCP sockets have it
                accepted.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            await self.loop.connect_accepted_socket(  # type: ignore[type-var]  # a protocol by its methods
                lambda: connection,
                accepted,
                ssl=None if tls is None else tls(),
                ssl_handshake_timeout=None if tls is None else HANDSHAKE_TIMEOUT,
            )
            opened = True
        except (TimeoutError, OSError):
            pass  # disconnected, or a failed handshake
        finally:
            if not opened:
                connection.release()
                accepted.close()

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
        if self.budget.admit("resp"):
            return True
        self._evict()
        return self.budget.admit("resp")

    def release(self) -> None:
        """Stop counting a connection."""
        self.budget.release("resp")

    def _evict(self) -> None:
        """Close the connections that have been idle for longest; those that never sent a command go first."""
        now = self.loop.time()
        if now - self._searched_at < 1.0:
            return
        candidates = [
            (
                connection.served or now - connection.opened_at < NEW_SECONDS,
                connection.active_at,
                id(connection),
                connection,
            )
            for connection in self.connections
            if connection.is_idle or connection.blocked_since is not None
        ]
        if not candidates:
            self._searched_at = now
        for *_, connection in sorted(candidates)[: 1 + len(candidates) // 64]:
            connection.evict()

    def _warn(self, reason: str) -> None:
        now = self.loop.time()
        if now - self._warned_at >= WARN_INTERVAL:
            self._warned_at = now
            _log.warning("RESP connections refused: %s", reason)

    # Open connections.

    def hold(self, connection: RespConnection, held: int) -> bool:
        """Count what a connection holds now. If that is too much for all of them together, the one that holds most is
        closed; False, and nothing changes, if that is this one."""
        if held <= connection.counted:
            self.budget.free("resp", connection.counted - held)
            connection.counted = held
            return True
        while not self.budget.hold("resp", held - connection.counted):
            self.scheduler.add_work(SLICE_WORK // 4)  # all connections are looked at
            largest = max(self.connections, key=_counted, default=connection)
            if largest is connection or largest.counted <= held:
                return False
            largest.close_for_memory()
        connection.counted = held
        return True

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

    def _check(self, connection: RespConnection, now: float) -> None:
        blocked_since = connection.blocked_since
        if blocked_since is not None:
            if now - blocked_since > UNREAD_TIMEOUT:
                connection.abort()
        elif connection.is_idle and now - connection.active_at > (
            COMMAND_TIMEOUT if connection.is_partial else IDLE_TIMEOUT
        ):
            connection.abort()


def _counted(connection: RespConnection) -> int:
    return connection.counted
