"""One worker: uvicorn around the application and gRPC beside it, from the first connection to the last answer."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import ceil
from multiprocessing import parent_process
from socket import socket
from types import FrameType

import uvicorn
import uvloop

from headgate.config.settings import Settings
from headgate.service.admission import Admission
from headgate.service.app import Service, open_service
from headgate.service.connections import ConnectionBudget, max_connections
from headgate.service.handshakes import TlsListener
from headgate.service.listening import Listening
from headgate.service.node import Node
from headgate.service.observe.logs import configure
from headgate.service.protocol import Connection, Patience
from headgate.service.quick import QuickConnection
from headgate.service.rpc.listener import Listener
from headgate.service.rpc.security import make_context
from headgate.service.secrets import secrets_of

__all__ = ["HELD", "Server", "run_worker"]

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept: longer than proxies keep theirs, so that it is they who hang up."""
LOOK_EVERY = 0.1
GRACE = 2
"""Seconds for what was begun for those who were given up: it knows its own deadline, and need not be cancelled."""
HELD = frozenset({signal.SIGINT, signal.SIGHUP})
"""What a supervisor holds back from a worker until it knows what to do then: it would die of it while it starts."""


class Server(uvicorn.Server):
    """uvicorn's server, which ends when it is told to, and says with its exit code that this was meant.

    It ends the listener for gRPC too, at the same time and with the same patience.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        rpc: Listener,
        patience: float,
        stopping: Callable[[], None],
        budget: ConnectionBudget | None = None,
    ) -> None:
        """`patience` is how many seconds those get who are not answered when it ends; `stopping` is called as soon as
        it is told to; `budget` bounds the connections of all listeners together."""
        super().__init__(config)
        self.servers: list[asyncio.Server | TlsListener] = []  # type: ignore[assignment]  # uvicorn only closes them
        self._admission = Admission(budget)
        self._rpc = rpc
        self._patience = patience
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stopping()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """As uvicorn does it, with a budget for connections and a time limit for TLS handshakes."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        backlog = self._admission.budget.backlog
        for sock in sockets or ():
            if self.config.ssl is None:
                self.servers.append(await loop.create_server(self._connection, sock=sock, backlog=backlog))
            else:
                self.servers.append(TlsListener(sock, self._connection, self.config.ssl, self._admission))
        self.started = True

    def _connection(self) -> QuickConnection:
        return QuickConnection(self.config, self.server_state, self.lifespan.state, admission=self._admission)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Answer what is under way. Who takes too long, or is not waited for, is told so: uvicorn would cancel it."""
        late = asyncio.create_task(self._lose_patience())
        calls = asyncio.create_task(self._rpc.close(self._patience))
        try:
            await super().shutdown(sockets)
            while not calls.done() and not self.force_exit:
                await asyncio.wait([calls], timeout=LOOK_EVERY)
        finally:
            late.cancel()
            calls.cancel()  # which cuts off whoever is left
            with suppress(asyncio.CancelledError):
                await calls
            self._give_up()
            if self.force_exit:
                logging.getLogger("uvicorn.error").disabled = True  # what is cut off now is cut off on purpose

    async def _lose_patience(self) -> None:
        await asyncio.sleep(self._patience)
        self._give_up()

    def _give_up(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.give_up(503, "the service ends, and this was not done in time: ask again")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run_worker(
    settings: Settings, node: Node, number: int, listening: Listening, ready: Callable[[], None] = lambda: None
) -> None:
    """Answer on two sockets until told to end, and then answer what is under way. `ready` is called when it can."""
    configure(settings.logs, worker=number, secrets=secrets_of(settings, os.environ))
    _end_with_parent()
    uvloop.run(_serve(settings, node, number, listening, ready))


async def _serve(settings: Settings, node: Node, number: int, listening: Listening, ready: Callable[[], None]) -> None:
    secured = make_context(settings.server.tls) if settings.server.tls is not None else None
    service = await open_service(settings, node, number)
    budget = ConnectionBudget(max_connections())
    rpc = Listener(service.rpc, secured, budget)
    gc.collect()
    gc.freeze()  # what is there now stays: to look at all of it again and again would hold up checks

    def stopping() -> None:
        service.health.stopping = True

    def hang_up(_: int, __: FrameType | None) -> None:
        service.reload()

    server = Server(_config(settings, service), rpc, settings.server.shutdown_seconds, stopping, budget)

    signal.signal(signal.SIGHUP, hang_up)
    patience = asyncio.create_task(Patience(server.server_state.connections).run())
    housekeeping = asyncio.create_task(service.keep_house())
    try:
        await rpc.start(listening.grpc)
        ready()
        await server.serve(sockets=[listening.http])
    finally:
        await rpc.close(0)
        for task in (patience, housekeeping):
            task.cancel()
        await asyncio.gather(patience, housekeeping, return_exceptions=True)
        await service.close()


def _config(settings: Settings, service: Service) -> uvicorn.Config:
    tls = settings.server.tls
    return uvicorn.Config(
        service.app,
        http=QuickConnection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=ceil(settings.server.shutdown_seconds) + GRACE,
        ssl_certfile=tls.certificate if tls is not None else None,
        ssl_keyfile=tls.key if tls is not None else None,
    )


def _end_with_parent() -> None:
    """A worker whose supervisor was killed ends too: nobody would replace it, and nobody could stop it."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=watch, name="headgate-parent", daemon=True).start()
