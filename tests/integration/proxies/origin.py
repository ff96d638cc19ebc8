"""The application behind a proxy: it says what reached it, so that a test can tell what the proxy made of a request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Origin", "origin"]

STATUSES = {"/forbidden": 403, "/broken": 500, "/absent": 404}
"""What it answers of its own accord; to all else it says 200."""


@dataclass(slots=True)
class Origin:
    """Where it listens, and how many requests came so far."""

    port: int
    reached: list[str] = field(default_factory=list)


@contextmanager
def origin() -> Iterator[Origin]:
    """An application in a thread of its own, on a port that the system chose."""
    found = Origin(0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self._body()
            found.reached.append(self.path)
            said = {
                "method": self.command,
                "path": self.path,
                "headers": [[name.lower(), value] for name, value in self.headers.items()],
                "bytes": len(body),
            }
            answer = json.dumps(said).encode()
            self.send_response(STATUSES.get(self.path, 200))
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

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
            """Nothing: what matters is in the answers."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # many come at once
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        found.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
