"""Listens for gRPC on the event loop of a worker, until it is told to end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from socket import SO_KEEPALIVE, SOL_SOCKET, socket

from headgate.service.rpc import frames
from headgate.service.rpc.call import Method
from headgate.service.rpc.connection import Connection

__all__ = ["Listener"]

BACKLOG = 2048
LOOK_EVERY = 5.0
"""Seconds between two looks for peers that have begun something and do not go on."""
MOST_SILENCE = 10.0
"""Seconds in which a peer must have said that it speaks HTTP/2."""
MOST_PATIENCE = 60.0
"""Seconds in which a call must have come, and in which its answer must have been taken."""
LAST_CALL = 1.0
"""Seconds for peers to hear that the service ends, before nothing new is taken."""


class Listener:
    """Answers calls of `methods`, by their paths."""

    def __init__(self, methods: Mapping[bytes, Method], tls: ssl.SSLContext | None = None) -> None:
        self.methods = dict(methods)
        self.connections: set[Connection] = set()
        self.closed = False
        """Whether even those that are only now through with TLS come too late."""
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def start(self, listening: socket) -> None:
        """Accept connections from a socket, which others may accept from as well."""
        listening.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)  # who goes without a word is noticed some day
        self._server = await self.loop.create_server(
            self._connection,  # type: ignore[arg-type]  # a protocol in all but its class, which is compiled
            sock=listening,
            ssl=self._tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=MOST_SILENCE if self._tls is not None else None,
        )
        self._watching = self.loop.create_task(self._watch())

    async def close(self, patience: float) -> None:
        """Take nothing new, answer what is under way in so many seconds, and cut off the rest; at once if cancelled."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        try:
            await self._last_answers(self.loop.time() + patience)
        finally:
            self.closed = True
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

    def _connection(self) -> Connection:
        return Connection(self)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self.look(self.loop.time())

    def look(self, now: float) -> None:
        """Let go of peers that keep others from being served."""
        for connection in list(self.connections):
            if not connection.incoming.greeted:
                if now - connection.since > MOST_SILENCE:
                    connection.cut()
                continue
            stuck_since = connection.stuck_since
            if stuck_since is not None and now - stuck_since > MOST_PATIENCE:
                connection.cut()
                continue
            for stream in list(connection.streams.values()):
                waits = stream.trailers is not None or not (stream.complete or stream.method.streaming)
                if waits and now - stream.since > MOST_PATIENCE:
                    connection.reset(stream.number, frames.CANCEL)
            connection.flush()
