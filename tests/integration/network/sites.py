"""Servers that tests may kill, each behind a proxy that breaks connections."""

from __future__ import annotations

from typing import NamedTuple

from crestgate import Limiter
from integration.network.crew import with_options
from servers.mariadb import MariaDB
from servers.proxy import CuttingProxy
from servers.redis import RedisServer

__all__ = ["DEADLINE", "LIMIT", "Site"]

DEADLINE = 0.2
"""Seconds that a check may take, unless a test says otherwise."""
LIMIT = "1000000/year using fixed_window"
"""What no test uses up."""


class Site(NamedTuple):
    """A server, a proxy before it, and counters that no other test has."""

    server: RedisServer | MariaDB
    proxy: CuttingProxy
    prefix: str

    @property
    def forgets(self) -> bool:
        """Whether all counters are gone when the server ends."""
        return isinstance(self.server, RedisServer)

    def url(self, deadline: float = DEADLINE) -> str:
        """Through the proxy."""
        through = self.server.url.replace(f":{self.server.port}/", f":{self.proxy.port}/")
        return with_options(through, prefix=self.prefix, timeout_ms=int(deadline * 1000))

    def used(self, key: str, limit: str = LIMIT) -> int:
        """The use that the server itself has counted."""
        with Limiter(with_options(self.server.url, prefix=self.prefix, timeout_ms=10_000)) as limiter:
            standing = limiter.peek(key, limit, 0)
            assert standing.reason == "ok"
            return standing.limit - standing.remaining
