"""The application behind a proxy: it echoes the request, so that a test sees what the proxy forwarded.

It uses as many tokens as the request header x-use-tokens says, and reports them as x-tokens-used.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Origin", "serve_origin"]

STATUSES = {"/forbidden": 403, "/broken": 500, "/absent": 404}
"""Statuses by path; all other paths return 200."""


@dataclass(slots=True)
class Origin:
    """The port it listens on, and the paths of the requests so far."""

    port: int
    request_paths: list[str] = field(default_factory=list)


@contextmanager
def serve_origin() -> Iterator[Origin]:
    """Run the application in a thread, on a port chosen by the system."""
    started = Origin(0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self._body()
            started.request_paths.append(self.path)
            received = {
                "method": self.command,
                "path": self.path,
                "headers": [[name.lower(), value] for name, value in self.headers.items()],
                "bytes": len(body),
            }
            payload = json.dumps(received).encode()
            self.send_response(STATUSES.get(self.path, 200))
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(payload)))
            if tokens := self.headers.get("x-use-tokens"):
                self.send_header("x-tokens-used", tokens)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(payload)

        do_HEAD = do_POST = do_PUT = do_GET

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("transfer-encoding", ""):
                return self.rfile.read(int(self.headers.get("content-length", 0)))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # for concurrent connections
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        started.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield started
        finally:
            server.shutdown()
            thread.join()
