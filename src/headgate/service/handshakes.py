"""TLS handshakes of the HTTP listener: counted as connections from the start, and limited in time.

`loop.create_server(ssl=…)` tells nobody about a connection before its handshake is done, so thousands that never
finish it would not be counted. Here the TCP connection is accepted and counted first, and then upgraded to TLS.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from time import monotonic

from headgate.service.admission import Admission
from headgate.service.protocol import Connection

__all__ = ["TlsHandshake"]

MAX_HANDSHAKE_SECONDS = 10.0
"""As on the gRPC listener."""


class TlsHandshake(asyncio.Protocol):
    """A TCP connection on which TLS is to be spoken, until the handshake is done."""

    admitted = False

    def __init__(self, create: Callable[[], Connection], context: ssl.SSLContext, admission: Admission) -> None:
        """`create` makes the connection that takes over after the handshake."""
        self._create = create
        self._context = context
        self._admission = admission
        self._since = monotonic()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is one
        self._transport = transport
        if not self._admission.admit(self):
            transport.abort()
            return
        transport.pause_reading()  # what comes is for TLS, which resumes it
        self._task = asyncio.get_running_loop().create_task(self._upgrade(transport))

    def idle_time(self) -> float | None:
        return self._since

    def evict(self) -> None:
        self._transport.abort()

    async def _upgrade(self, transport: asyncio.Transport) -> None:
        connection = self._create()
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                connection,
                self._context,
                server_side=True,
                ssl_handshake_timeout=MAX_HANDSHAKE_SECONDS,
            )
        except OSError:  # TLS errors and time-outs are among them
            secured = None
        if secured is None or not self.admitted:
            self._admission.release(self)
            transport.abort()
            return
        self._admission.replace(self, connection)
        connection.connection_made(secured)
