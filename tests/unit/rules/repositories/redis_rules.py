"""Rules in Redis, opened for tests."""

from __future__ import annotations

import threading

from headgate.locks.redis_client import open_client
from headgate.rules.repositories.port import Changes
from headgate.rules.repositories.redis.repository import RedisRepository
from headgate.stores.options import Options
from unit.rules.repositories.kit import PATIENCE

__all__ = ["Bell", "news", "opened"]


def opened(url: str, *, most_changes: int = 10_000) -> RedisRepository:
    options = Options(url)
    return RedisRepository(lambda: open_client(options, 5.0), prefix=options.prefix(), most_changes=most_changes)


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
