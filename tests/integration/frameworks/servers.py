"""Real servers on loopback, in threads of this process."""

from __future__ import annotations

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


@contextmanager
def serve_asgi(app: Any) -> Iterator[str]:
    """An ASGI application under uvicorn; its lifespan is run."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        until("the server has started", lambda: server.started or not thread.is_alive())
        assert server.started, "the application did not start"
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


@contextmanager
def serve_wsgi(app: Any) -> Iterator[str]:
    """A WSGI application, a thread for each request."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
