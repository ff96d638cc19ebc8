"""Limits on all connections of one worker, whichever listener accepted them.

Each connection has limits of its own, but a client may open many. So a worker counts its connections, and the bytes
that they hold (incomplete requests, unsent responses), together. A connection also costs a file descriptor, and a
process has a limited number: some are reserved for stores, logs and rule files, and no listener can use up those of the
others.
"""

from __future__ import annotations

from typing import Final, Literal, final

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]  # asked for below

__all__ = ["ConnectionBudget", "ListenerName", "max_connections", "raise_file_limit"]

MAX_CONNECTIONS: Final = 10_000
"""Per worker, however many files the system allows: each connection costs memory, too."""
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
"""Per worker: incomplete requests and unsent responses of all connections together."""
MAX_FILE_LIMIT: Final = 65_536
"""More is never needed, and a limit without bound makes some libraries slow."""
MAX_BACKLOG: Final = 2048
MIN_RESERVED_FILES: Final = 64
SELECT_FILE_LIMIT: Final = 512
"""Where processes have no limit of open files (Windows), the event loop has: `select` takes so many sockets."""

ListenerName = Literal["grpc", "http", "resp"]


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it. Child processes inherit it."""
    if resource is None:
        return SELECT_FILE_LIMIT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_FILE_LIMIT if hard == resource.RLIM_INFINITY else min(hard, MAX_FILE_LIMIT)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return soft if soft != resource.RLIM_INFINITY else MAX_FILE_LIMIT
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):  # some systems and containers refuse: what is there has to do
        return soft
    return target


def max_connections(file_limit: int | None = None) -> int:
    """How many connections a process may have under its limit of open files: a quarter of the files is kept.

    >>> max_connections(1024)
    768
    """
    if file_limit is None and resource is None:
        file_limit = SELECT_FILE_LIMIT
    if file_limit is None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        file_limit = MAX_FILE_LIMIT if soft == resource.RLIM_INFINITY else soft
    reserved = max(MIN_RESERVED_FILES, file_limit // 4)
    return max(2, min(MAX_CONNECTIONS, file_limit - reserved))


@final
class ConnectionBudget:
    """Counts the open connections of one worker, and the bytes that they hold.

    One listener gets at most three quarters of all connections, and of all bytes, so that a flood on one leaves room on
    the others.

    >>> budget = ConnectionBudget(max_connections=4)
    >>> [budget.admit("grpc") for _ in range(4)], budget.admit("http")
    ([True, True, True, False], True)
    >>> budget.release("grpc"); budget.admit("grpc")
    True
    """

    def __init__(self, max_connections: int, max_bytes: int = MAX_HELD_BYTES) -> None:
        self.max_connections = max_connections
        self.max_per_listener = max(1, max_connections * 3 // 4)
        self.max_bytes = max_bytes
        self.max_bytes_per_listener = max_bytes * 3 // 4
        self.held_bytes = 0
        self._held: dict[ListenerName, int] = {"grpc": 0, "http": 0, "resp": 0}
        self._open: dict[ListenerName, int] = {"grpc": 0, "http": 0, "resp": 0}
        self._all = 0
        """Connections of all listeners."""

    @property
    def backlog(self) -> int:
        """For `listen`: a whole backlog may be accepted before the first of it can be refused, and needs files."""
        return max(16, min(MAX_BACKLOG, self.max_connections // 6))

    def connections(self, listener: ListenerName) -> int:
        return self._open[listener]

    def admit(self, listener: ListenerName) -> bool:
        """Count a new connection; False, and nothing is counted, when there is no room for it."""
        if self._open[listener] >= self.max_per_listener or self._all >= self.max_connections:
            return False
        self._open[listener] += 1
        self._all += 1
        return True

    def release(self, listener: ListenerName) -> None:
        """A connection that was admitted has ended."""
        self._open[listener] -= 1
        self._all -= 1

    def hold(self, listener: ListenerName, size: int) -> bool:
        """Count bytes that a connection is about to hold; False, and nothing is counted, when that is too much."""
        held = self._held[listener] + size
        if held > self.max_bytes_per_listener or self.held_bytes + size > self.max_bytes:
            return False
        self._held[listener] = held
        self.held_bytes += size
        return True

    def free(self, listener: ListenerName, size: int) -> None:
        """Bytes that were held are no longer."""
        self._held[listener] -= size
        self.held_bytes -= size
