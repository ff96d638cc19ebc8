"""Private servers, started by the helpers of the tests, so that contenders use idle ones and no other data is touched.

Each is a child process on a free port of loopback, with its data in a temporary folder.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servers.process import ServerProcess

__all__ = ["KINDS", "private_server", "server_version"]

TESTS = Path(__file__).resolve().parent.parent / "tests"
CONNECTIONS = "400"
KINDS = {"redis": "redis-server", "mariadb": "mariadbd", "postgresql": "postgres"}
"""The kinds that there are, each with its program."""


@contextmanager
def private_server(kind: str) -> Iterator[str]:
    """The URL of an empty server that stops at the end of the `with` block."""
    with _create(kind) as server:
        yield server.url


def server_version(kind: str) -> str:
    """The version of the program that `private_server` starts, as in `7.0.15`."""
    server = _create(kind)
    program = str(server.command()[0])
    server.close()  # it was never started
    output = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=10)
    found = re.search(r"\d+(\.\d+)+", output.stdout)
    return found[0] if found else "unknown"


def _create(kind: str) -> ServerProcess:
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    from servers.mariadb import MariaDB
    from servers.postgres import Postgres
    from servers.redis import RedisServer

    makers: dict[str, Callable[[], ServerProcess]] = {
        "redis": RedisServer,  # which keeps nothing on disk
        "mariadb": lambda: MariaDB(flush_log=1, settings={"max-connections": CONNECTIONS}),
        "postgresql": lambda: Postgres(settings={"max_connections": CONNECTIONS}),
    }
    return makers[kind]()
