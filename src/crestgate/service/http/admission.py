"""Room for new HTTP connections when a worker has as many as it may have.

Idle connections cost nothing but their place, and anybody can open thousands of them. So when the budget has no place
left, an idle connection is closed for the new one: first those that have never sent a whole request, the oldest of them
first, then those that have waited longest for the next one, and last those whose clients do not read their responses.
All connections are looked at only when there is no room, and then at most five times a second: a flood of new
connections must not cost a scan each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import monotonic
from typing import Protocol

from crestgate.runtime.connection_budget import MAX_CONNECTIONS, ConnectionBudget

__all__ = ["NEVER_SERVED", "SERVED", "UNREAD", "AdmittedConnection", "ConnectionAdmission"]

NEVER_SERVED = 0
"""Eviction rank of a connection that has not sent a whole request. The lowest rank is closed first."""
SERVED = 1
"""The same of one that waits for another request."""
UNREAD = 2
"""The same of one whose client does not read a response."""

MIN_IDLE = 0.2
"""Seconds that a connection must have waited for its first request before another one may take its place."""
MIN_IDLE_SERVED = 1.0
"""The same of one that has been answered before: its client may be about to call again."""
MIN_UNREAD = 1.0
"""The same of one whose client does not read: the network may be slow."""
SCAN_INTERVAL = 0.2
LOG_INTERVAL = 10.0
_log = logging.getLogger("crestgate.connections")


class AdmittedConnection(Protocol):
    """A connection that is counted."""

    admitted: bool
    counted: int
    """Bytes that the budget counts as held by it."""

    @property
    def releasable(self) -> bool:
        """Whether closing it frees what it holds."""

    @property
    def eviction_rank(self) -> int:
        """NEVER_SERVED, SERVED or UNREAD."""

    def inactive_since(self) -> float | None:
        """Since when (`time.monotonic`) it waits for its client to send or to read; None while it does not."""

    def evict(self) -> None:
        """Close it now."""

    def refuse_to_hold(self) -> None:
        """Close it because of what it holds."""


_Idle = tuple[int, float, AdmittedConnection]
"""Eviction rank, since when it is idle, and the connection."""


class ConnectionAdmission:
    """Admits the HTTP connections of one worker."""

    def __init__(self, budget: ConnectionBudget | None = None) -> None:
        """`budget` counts the connections of all listeners together; None: those of HTTP alone."""
        self.budget = budget if budget is not None else ConnectionBudget(MAX_CONNECTIONS)
        self.open: set[AdmittedConnection] = set()
        self.scheduled = 0
        """Connections that process pending data in the next turn of the event loop."""
        self._idle: list[_Idle] = []
        """Found by the last scan (see `_idle_connections`). The last one is closed first."""
        self._scanned = 0.0
        self._logged = 0.0
        self._refused = 0

    def admit(self, connection: AdmittedConnection) -> bool:
        """Count a connection. False when there is no room, and no other one is idle."""
        if not self.budget.admit("http"):
            now = monotonic()
            if not (self._evict(now) and self.budget.admit("http")):
                self._note(now)
                return False
        connection.admitted = True
        self.open.add(connection)
        return True

    def replace(self, before: AdmittedConnection, after: AdmittedConnection) -> None:
        """A connection goes on as another object, and keeps its place if it still has one."""
        if before.admitted:
            self.open.remove(before)
            self.open.add(after)
            before.admitted, after.admitted = False, True

    def release(self, connection: AdmittedConnection) -> None:
        """A connection has ended, or is about to. Calling it again does nothing."""
        if connection.admitted:
            connection.admitted = False
            self.open.remove(connection)
            self.budget.release("http")

    def free_memory(self, size: int) -> bool:
        """Close the connection that holds most, if that is more than `size`. Whether there was one."""
        largest: AdmittedConnection | None = None
        for connection in self.open:
            if connection.counted > size and connection.releasable:
                size, largest = connection.counted, connection
        if largest is None:
            return False
        largest.refuse_to_hold()
        return True

    def _evict(self, now: float) -> bool:
        if not self._idle and now - self._scanned >= SCAN_INTERVAL:
            self._scanned = now
            self._idle = _idle_connections(self.open, now)
        while self._idle:
            _, since, connection = self._idle.pop()
            if connection.admitted and connection.inactive_since() == since:  # and nothing has come since the scan
                self.release(connection)
                connection.evict()
                return True
        return False

    def _note(self, now: float) -> None:
        self._refused += 1
        if now - self._logged >= LOG_INTERVAL:
            _log.warning(
                "connection limit reached: %d HTTP connections are open, %d refused since the last message",
                self.budget.connections("http"),
                self._refused,
            )
            self._logged = now
            self._refused = 0


def _idle_connections(connections: Iterable[AdmittedConnection], now: float) -> list[_Idle]:
    """Those that have been idle for a while: their eviction rank, and since when they are idle."""
    min_idle = (MIN_IDLE, MIN_IDLE_SERVED, MIN_UNREAD)
    idle: list[_Idle] = []
    for connection in connections:
        since = connection.inactive_since()
        if since is not None:
            rank = connection.eviction_rank
            if now - since >= min_idle[rank]:
                idle.append((rank, since, connection))
    idle.sort(key=_order, reverse=True)
    return idle


def _order(entry: _Idle) -> tuple[int, float]:
    return entry[:2]
