"""A psycopg connection that does not wait for ever for a server that hangs.

psycopg waits for each answer as long as it takes; a server that is stopped keeps its connections open and never
answers. Here a connection that had no answer in time is closed, and the statement fails.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

__all__ = ["bounded_connect"]

T = TypeVar("T")


class BoundedConnection(psycopg.Connection[Any]):
    """A connection with a number of seconds for each answer."""

    patience = 5.0

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        return super().wait(self._bounded(gen), *args, **options)

    def _bounded(self, conversation: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """The same conversation; psycopg wakes it up now and then even if nothing has come."""
        deadline = time.monotonic() + self.patience
        ready = None
        try:
            while True:
                wanted = conversation.send(ready)
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self.patience:g} s")
        except StopIteration as end:
            answer: T = end.value
            return answer


def bounded_connect(conninfo: str, seconds: float) -> BoundedConnection:
    connection = BoundedConnection.connect(conninfo, connect_timeout=max(round(seconds), 2))  # libpq's least
    connection.patience = seconds
    return connection
