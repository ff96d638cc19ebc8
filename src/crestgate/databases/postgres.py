"""psycopg connection with a timeout for each reply.

psycopg itself has no such timeout, and a stopped server keeps its connections open and never replies. Here the
connection is closed after the timeout, and the statement fails.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

__all__ = ["connect_with_timeout"]

T = TypeVar("T")


class TimeoutConnection(psycopg.Connection[Any]):
    """Waits `reply_timeout` seconds for each reply."""

    reply_timeout = 5.0

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        return super().wait(self._bounded(gen), *args, **options)

    def _bounded(self, generator: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """The same generator with a deadline; psycopg resumes it periodically even if nothing has arrived."""
        deadline = time.monotonic() + self.reply_timeout
        ready = None
        try:
            while True:
                wait_request = generator.send(ready)
                ready = yield wait_request
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no reply within {self.reply_timeout:g} s")
        except StopIteration as end:
            result: T = end.value
            return result


def connect_with_timeout(conninfo: str, seconds: float) -> TimeoutConnection:
    connection = TimeoutConnection.connect(conninfo, connect_timeout=max(round(seconds), 2))  # libpq's minimum
    connection.reply_timeout = seconds
    return connection
