"""Helpers that open rules in Redis and count notifications."""

from __future__ import annotations

import threading

from crestgate.databases.redis_client import open_client
from crestgate.rules.port import Changes
from crestgate.rules.storage.redis.repository import RedisRepository
from crestgate.runtime.url_options import Options
from unit.rules.storage.kit import TIMEOUT

__all__ = ["NotificationCounter", "changes_since", "open_rules"]


def open_rules(url: str, *, max_changes: int = 10_000) -> RedisRepository:
    options = Options(url)
    return RedisRepository(lambda: open_client(options, 5.0), prefix=options.prefix(), max_changes=max_changes)


def changes_since(rules: RedisRepository, since: int) -> Changes:
    changes = rules.changes(since)
    assert changes is not None
    return changes


class NotificationCounter:
    """Counts notifications."""

    def __init__(self) -> None:
        self.notifications = threading.Semaphore(0)

    def notify(self) -> None:
        self.notifications.release()

    def wait(self) -> bool:
        return self.notifications.acquire(timeout=TIMEOUT)
