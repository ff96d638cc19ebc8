"""Servers that tests may kill, each behind a proxy that breaks connections."""

from __future__ import annotations

from typing import NamedTuple

from crestgate import Limiter
from integration.network.load_processes import with_options
from servers.mariadb import MariaDB
from servers.proxy import CuttingProxy
from servers.redis import RedisServer

__all__ = ["DEADLINE", "LIMIT", "ProxiedServer"]

DEADLINE = 0.2
"""Seconds that a check may take, unless a test says otherwise."""
LIMIT = "1000000/year using fixed_window"
"""A limit that no test reaches."""


class ProxiedServer(NamedTuple):
    """A server, a proxy in front of it, and a prefix unique to the test."""

    server: RedisServer | MariaDB
    proxy: CuttingProxy
    prefix: str

    @property
    def loses_counters(self) -> bool:
        """Whether the server loses all counters when it stops."""
        return isinstance(self.server, RedisServer)

    def url(self, deadline: float = DEADLINE) -> str:
        """The URL through the proxy."""
        through = self.server.url.replace(f":{self.server.port}/", f":{self.proxy.port}/")
        return with_options(through, prefix=self.prefix, timeout_ms=int(deadline * 1000))

    def used(self, key: str, limit: str = LIMIT) -> int:
        """The usage counted by the server, read without the proxy."""
        with Limiter(with_options(self.server.url, prefix=self.prefix, timeout_ms=10_000)) as limiter:
            state = limiter.peek(key, limit, 0)
            assert state.reason == "ok"
            return state.limit - state.remaining
