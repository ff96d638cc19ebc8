"""What the Redis under the applications says of itself: how often it was called, and what that cost it.

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
    """Asks one Redis, over a connection that stays open."""

    def __init__(self, url: str) -> None:
        import redis

        self._client = redis.Redis.from_url(url)

    def load(self) -> RedisLoad:
        said: dict[str, Any] = dict(self._client.info("everything"))
        return RedisLoad(int(said["total_reads_processed"]), said["used_cpu_user"] + said["used_cpu_sys"])

    def forget(self) -> None:
        """Whatever was counted in it."""
        self._client.flushall()

    def close(self) -> None:
        self._client.close()
