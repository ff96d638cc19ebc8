"""Accepts HTTPS connections: counted from the start of the TLS handshake, which is limited in time.

`loop.create_server(ssl=…)` tells nobody about a connection before its handshake is done, so thousands that never
finish it would not be counted, and could not be closed for others. Here a connection is accepted and counted first.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial
from socket import IPPROTO_TCP, TCP_NODELAY, socket
from time import monotonic

from crestgate.service.http.admission import NEVER_SERVED, ConnectionAdmission
from crestgate.service.http.protocol import HttpConnection

__all__ = ["TlsListener"]

MAX_HANDSHAKE_SECONDS = 10.0
"""As on the gRPC listener."""
MAX_ACCEPTED = 64
"""Connections that are accepted in one turn of the event loop."""
ACCEPT_PAUSE = 0.1
"""Seconds without accepting, after the system refused to."""
_log = logging.getLogger("crestgate.connections")


class TlsListener:
    """Accepts connections from a socket until it is closed, as the servers of an event loop do."""

    def __init__(
        self,
        listening: socket,
        create: Callable[[], HttpConnection],
        context: Callable[[], ssl.SSLContext],
        admission: ConnectionAdmission,
    ) -> None:
        """`create` makes the connection that takes over after a handshake, and `context` returns the TLS context of the
        next one."""
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._create = create
        self._context = context
        self._admission = admission
        self._handshakes: set[Handshake] = set()
        self._closed = False
        listening.setblocking(False)
        listening.listen(admission.budget.backlog)
        self._loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        """Accept nothing more, and give up the handshakes under way."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._listening.fileno())
            for handshake in list(self._handshakes):
                handshake.evict()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for: connections are the server's."""

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("accept failed, trying again: %s", error.strerror)
                self._loop.remove_reader(self._listening.fileno())
                self._loop.call_later(ACCEPT_PAUSE, self._resume)
                return
            handshake = Handshake(accepted)
            if not self._admission.admit(handshake):
                accepted.close()
                continue
            self._handshakes.add(handshake)
            handshake.task = self._loop.create_task(self._shake_hands(handshake))
            handshake.task.add_done_callback(partial(self._finish, handshake))

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    async def _shake_hands(self, handshake: Handshake) -> None:
        accepted = handshake.accepted
        connection = self._create()

        def connected() -> HttpConnection:
            return connection

        connection.admitting = handshake
        accepted.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        await self._loop.connect_accepted_socket(
            connected, accepted, ssl=self._context(), ssl_handshake_timeout=MAX_HANDSHAKE_SECONDS
        )

    def _finish(self, handshake: Handshake, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(handshake)
        if task.cancelled() or task.exception() is not None:
            self._admission.release(handshake)
            handshake.accepted.close()
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, OSError):  # TLS errors and time-outs are OSErrors
                _log.error("unhandled error in a TLS handshake", exc_info=error)


class Handshake:
    """A connection that is accepted, and does not speak TLS yet."""

    eviction_rank = NEVER_SERVED
    counted = 0
    releasable = False

    def __init__(self, accepted: socket) -> None:
        self.accepted = accepted
        self.admitted = False
        self.task: asyncio.Task[None] | None = None
        self._since = monotonic()

    def inactive_since(self) -> float | None:
        return self._since

    def refuse_to_hold(self) -> None:
        """It holds nothing."""

    def evict(self) -> None:
        if self.task is not None:
            self.task.cancel()
