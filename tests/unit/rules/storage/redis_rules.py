"""Rules in Redis, opened for tests."""

from __future__ import annotations

import threading

from crestgate.databases.redis_client import open_client
from crestgate.rules.port import Changes
from crestgate.rules.storage.redis.repository import RedisRepository
from crestgate.runtime.url_options import Options
from unit.rules.storage.kit import PATIENCE

__all__ = ["Bell", "news", "opened"]


def opened(url: str, *, max_changes: int = 10_000) -> RedisRepository:
    options = Options(url)
    return RedisRepository(lambda: open_client(options, 5.0), prefix=options.prefix(), max_changes=max_changes)


def news(rules: RedisRepository, since: int) -> Changes:
    changes = rules.changes(since)
    assert changes is not None
    return changes


class Bell:
    """Counts how often it was rung."""

    def __init__(self) -> None:
        self.rings = threading.Semaphore(0)

    def ring(self) -> None:
        self.rings.release()

    def rung(self) -> bool:
        return self.rings.acquire(timeout=PATIENCE)
