"""Statistics of the Redis behind the applications: the number of calls, and their processor time.

Its reads are counted, and not its commands: those that a script runs inside the server would count, too, and several
that come together are one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["RedisFigures", "RedisLoad"]


@dataclass(frozen=True)
class RedisLoad:
    """Since it was started."""

    reads: int
    processor_seconds: float


class RedisFigures:
    """Queries one Redis, over a connection that stays open."""

    def __init__(self, url: str) -> None:
        import redis

        self._client = redis.Redis.from_url(url)

    def load(self) -> RedisLoad:
        info: dict[str, Any] = dict(self._client.info("everything"))
        return RedisLoad(int(info["total_reads_processed"]), info["used_cpu_user"] + info["used_cpu_sys"])

    def forget(self) -> None:
        """Delete all counters."""
        self._client.flushall()

    def close(self) -> None:
        self._client.close()
