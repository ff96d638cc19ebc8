"""A Redis of our own, so that the peers' calls meet an idle server and nobody's data is touched."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.children import child

__all__ = ["private_redis", "redis_version"]

START_SECONDS = 10
ATTEMPTS = 3


@contextmanager
def private_redis(folder: Path) -> Iterator[str]:
    """The URL of an empty server on loopback that writes nothing to disk and ends with the `with`."""
    for attempt in range(ATTEMPTS):
        port = _free_port()
        settings = {"port": str(port), "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": str(folder)}
        command = ["redis-server", *(word for name, value in settings.items() for word in (f"--{name}", value))]
        with child(command, folder=folder, stdout=subprocess.DEVNULL) as server:
            if _answers(port, server):
                yield f"redis://127.0.0.1:{port}/0"
                return
        print(f"redis-server did not start on port {port} (attempt {attempt + 1} of {ATTEMPTS})", flush=True)
    raise RuntimeError("redis-server does not start")


def redis_version() -> str:
    """The server's version, as in `7.0.15`."""
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True, timeout=10)
    return next((word[2:] for word in said.stdout.split() if word.startswith("v=")), "unknown")


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int, server: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(16).startswith(b"+PONG"):
                    return True
        except OSError:
            time.sleep(0.05)
    return False
