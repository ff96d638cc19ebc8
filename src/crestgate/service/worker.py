"""One worker process: uvicorn for HTTP, and the gRPC and RESP listeners, on one event loop, from startup to graceful
shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import ceil
from multiprocessing import parent_process
from socket import socket
from types import FrameType

import uvicorn

from crestgate.config.settings import Settings
from crestgate.runtime.connection_budget import ConnectionBudget, max_connections
from crestgate.service.composition import Service, open_service
from crestgate.service.garbage_collector import configure_garbage_collector
from crestgate.service.grpc.transport.listener import GrpcListener
from crestgate.service.http.admission import ConnectionAdmission
from crestgate.service.http.fast_path import FastConnection
from crestgate.service.http.handshakes import TlsListener
from crestgate.service.http.protocol import ConnectionTimeouts, HttpConnection
from crestgate.service.node import ListenSockets, NodeDirectory
from crestgate.service.observability.log_redaction import settings_secrets
from crestgate.service.observability.logs import configure
from crestgate.service.resp.listener import RespListener

__all__ = ["BLOCKED_SIGNALS", "UvicornServer", "run_worker"]

KEEP_ALIVE = 75
"""Seconds that an idle HTTP connection is kept: longer than proxies keep theirs, so that they close it."""
POLL_SECONDS = 0.1
PARENT_SECONDS = 0.25
"""How often a worker looks whether the supervisor is alive."""
GRACE_SECONDS = 2
"""For handlers whose clients got 503 at the end: they have deadlines of their own, and need not be cancelled."""
BLOCKED_SIGNALS = frozenset(getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name))
"""Blocked until the worker has handlers for them: by default they would kill it during startup."""
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGBREAK") if hasattr(signal, name))
"""SIGBREAK is Ctrl-Break, on Windows."""


class UvicornServer(uvicorn.Server):
    """uvicorn's server, which exits with code 0 on SIGTERM and SIGINT, and closes the other listeners with itself."""

    def __init__(
        self,
        config: uvicorn.Config,
        rpc: GrpcListener,
        shutdown_timeout: float,
        on_stopping: Callable[[], None],
        budget: ConnectionBudget | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        resp: RespListener | None = None,
    ) -> None:
        """`shutdown_timeout` is the time for open requests, in seconds; `on_stopping` is called at the first signal;
        `budget` bounds the connections of all listeners together; `tls` returns the context of the next connection."""
        super().__init__(config)
        self._tls = tls
        self.servers: list[asyncio.Server | TlsListener] = []  # type: ignore[assignment]  # uvicorn only closes them
        self._admission = ConnectionAdmission(budget)
        self._rpc = rpc
        self._resp = resp
        self._shutdown_timeout = shutdown_timeout
        self._on_stopping = on_stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_stopping()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Like uvicorn, with a connection budget and a timeout of TLS handshakes."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        backlog = self._admission.budget.backlog
        for sock in sockets or ():
            if self._tls is None:
                self.servers.append(await loop.create_server(self._connection, sock=sock, backlog=backlog))
            else:
                self.servers.append(TlsListener(sock, self._connection, self._tls, self._admission))
        self.started = True

    def _connection(self) -> FastConnection:
        return FastConnection(self.config, self.server_state, self.lifespan.state, admission=self._admission)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Complete open requests; those that take too long get 503, where uvicorn would cancel them."""
        timeout = asyncio.create_task(self._time_out())
        calls = asyncio.create_task(self._close_listeners())
        try:
            await super().shutdown(sockets)
            while not calls.done() and not self.force_exit:
                await asyncio.wait([calls], timeout=POLL_SECONDS)
        finally:
            timeout.cancel()
            calls.cancel()  # which aborts the remaining connections
            with suppress(asyncio.CancelledError):
                await calls
            self._refuse_open_requests()
            if self.force_exit:
                logging.getLogger("uvicorn.error").disabled = True  # the rest is aborted on purpose

    async def _close_listeners(self) -> None:
        closing = [self._rpc.close(self._shutdown_timeout)]
        if self._resp is not None:
            closing.append(self._resp.close(self._shutdown_timeout))
        await asyncio.gather(*closing)

    async def _time_out(self) -> None:
        await asyncio.sleep(self._shutdown_timeout)
        self._refuse_open_requests()

    def _refuse_open_requests(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, HttpConnection):
                connection.give_up(503, "the service is shutting down, and the request did not complete in time: retry")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in STOP_SIGNALS}
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_SIGNALS)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run_worker(
    settings: Settings,
    node: NodeDirectory,
    number: int,
    listening: ListenSockets,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve all sockets until a signal, then shut down gracefully. `ready` is called when it serves."""
    configure(settings.logs, worker=number, secrets=settings_secrets(settings, os.environ))
    _stop_with_parent()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_serve(settings, node, number, listening, ready))


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's where it is installed, which is nowhere but on CPython and not on Windows. Else asyncio's loop with
    readers, which Windows' default has not."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.SelectorEventLoop
    return uvloop.new_event_loop


async def _serve(
    settings: Settings, node: NodeDirectory, number: int, listening: ListenSockets, ready: Callable[[], None]
) -> None:
    service = await open_service(settings, node, number)
    budget = ConnectionBudget(max_connections())
    certificates = service.certificates
    rpc = GrpcListener(service.rpc, None if certificates is None else certificates.grpc_context, budget)
    http_context = None if certificates is None else certificates.http_context
    resp = None if service.resp is None else RespListener(service.resp, http_context, budget)
    configure_garbage_collector()

    def on_stopping() -> None:
        service.health.stopping = True

    def reload(_: int, __: FrameType | None) -> None:
        service.reload()

    config = _config(settings, service)
    server = UvicornServer(config, rpc, settings.server.shutdown_seconds, on_stopping, budget, http_context, resp)

    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, reload)
    timeouts = asyncio.create_task(ConnectionTimeouts(server.server_state.connections).run())
    housekeeping = asyncio.create_task(service.run_background())
    try:
        await rpc.start(listening.grpc)
        if resp is not None and listening.resp is not None:
            resp.listen(listening.resp)
        ready()
        await server.serve(sockets=[listening.http])
    finally:
        await rpc.close(0)
        if resp is not None:
            await resp.close(0)
        for task in (timeouts, housekeeping):
            task.cancel()
        await asyncio.gather(timeouts, housekeeping, return_exceptions=True)
        await service.close()


def _config(settings: Settings, service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        service.app,
        http=FastConnection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=ceil(settings.server.shutdown_seconds) + GRACE_SECONDS,
    )


def _stop_with_parent() -> None:
    """Stop when the supervisor is killed: nothing would replace or stop this worker any more."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == parent.pid:  # not `parent.join()`: forked workers hold each other's ends of its pipes
            time.sleep(PARENT_SECONDS)
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=watch, name="crestgate-parent", daemon=True).start()
