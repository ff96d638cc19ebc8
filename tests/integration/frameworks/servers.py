"""Real servers on loopback, in threads of this process."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from werkzeug.serving import make_server

from servers.machine import until

__all__ = ["serve_asgi", "serve_wsgi"]


class _FastStoppingServer(uvicorn.Server):
    """Stops immediately if nothing is in progress: hundreds of tests start their own server."""

    async def main_loop(self) -> None:
        while not self.should_exit:
            await asyncio.sleep(0.005)
            await self.on_tick(0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for server in self.servers:
            server.close()
        await self.lifespan.shutdown()


@contextmanager
def serve_asgi(app: Any) -> Iterator[str]:
    """An ASGI application under uvicorn; its lifespan is run."""
    listener = socket.create_server(("127.0.0.1", 0))
    # By default uvicorn trusts X-Forwarded-For from this machine, before a middleware sees the peer address.
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1, proxy_headers=False)
    server = _FastStoppingServer(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until("the server has started", lambda: server.started or not thread.is_alive())
        assert server.started, "the application did not start"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


@contextmanager
def serve_wsgi(app: Any) -> Iterator[str]:
    """A WSGI application, a thread for each request."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
