"""The status of this worker, for its snapshot and for `/api/v1/status`."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from crestgate.service.observability.snapshot import WorkerStatus
from crestgate.stores.remote_store import RemoteStore

if TYPE_CHECKING:
    from crestgate.limiter.async_limiter import AsyncLimiter

__all__ = ["worker_status"]


def worker_status(limiter: AsyncLimiter, started_us: int, now_us: int) -> WorkerStatus:
    """The status now. The failure policy counts on a monotonic clock, and `now_us` is the wall clock."""
    now = time.monotonic()
    store = limiter.store
    breakers = store.breakers() if isinstance(store, RemoteStore) else {}
    recent = limiter.backend.failure.recent
    decided_us = 0
    if recent.last_at > float("-inf"):
        decided_us = now_us - round((now - recent.last_at) * 1_000_000)
    return WorkerStatus(
        os.getpid(),
        started_us,
        {name: (one.state(now), one.reason if one.failures else "") for name, one in breakers.items()},
        recent.last_minute(now),
        decided_us,
        recent.last_error,
    )
