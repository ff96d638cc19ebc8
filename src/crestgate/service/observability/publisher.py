"""Publishes the metrics of one worker to its file, and reads the files of all workers for a scrape.

WorkerMetrics belongs to the event loop, so values are copied there; files are written and read in threads. A scrape
first publishes the metrics of its own worker, then adds up the files: see worker_snapshots.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from crestgate import __version__
from crestgate.observers.breakers import BREAKER_LEVELS
from crestgate.service.observability.labels import KeyFormat, key_label
from crestgate.service.observability.last_uses import LastUses
from crestgate.service.observability.metrics import Labels
from crestgate.service.observability.prometheus import exposition
from crestgate.service.observability.snapshot import FRESH_US, Snapshot, merge_snapshots
from crestgate.service.observability.traffic_files import TrafficFiles
from crestgate.service.observability.worker_metrics import WorkerMetrics
from crestgate.service.observability.worker_snapshots import LastSeen, WorkerSnapshots
from crestgate.service.observability.worker_status import worker_status

if TYPE_CHECKING:
    from crestgate.limiter.async_limiter import AsyncLimiter

__all__ = ["Publisher"]

SEEN_INTERVAL_US = 2_000_000
"""How often recently seen names are written at most: there may be many."""
SWEEP_INTERVAL_US = 10_000_000
"""How often files of recorded traffic that nobody has read are removed."""
_log = logging.getLogger("crestgate")


class Publisher:
    """Publishes the metrics of one worker. All methods run on the worker's event loop."""

    def __init__(
        self,
        metrics: WorkerMetrics,
        worker_snapshots: WorkerSnapshots,
        limiter: AsyncLimiter,
        *,
        prefix: str,
        keys: KeyFormat,
        last_uses: LastUses | None = None,
        totals: Callable[[], Mapping[str, int]] = dict,
        gauges: Callable[[], Mapping[str, Mapping[Labels, int]]] = dict,
        started_us: int = 0,
    ) -> None:
        """`keys` is the format of keys in labels; `totals` returns counters that other objects of this process keep,
        such as the webhook, and `gauges` likewise; `started_us` is when the worker started."""
        self._started_us = started_us
        self._metrics = metrics
        self._worker_snapshots = worker_snapshots
        self._limiter = limiter
        self._prefix = prefix
        self._keys = keys
        self._totals = totals
        self._gauges = gauges
        self._last_uses = last_uses
        self._known_rules = limiter.catalog.current
        self._seen_at_us = 0
        self._traffic_files = TrafficFiles(worker_snapshots.folder, worker_snapshots.worker)
        self._swept_at_us = 0

    def snapshot(self, now_us: int) -> Snapshot:
        """The metrics now."""
        limiter = self._limiter
        rules = limiter.catalog.current
        if rules is not self._known_rules:
            self._known_rules = rules
            self._metrics.count_cache_lookup("rules", False)
        totals = {
            "store_errors": limiter.store_failures,
            **limiter.store_counts,
            "rules_reload_failures": limiter.catalog.failures,
            **self._totals(),
        }
        breakers: dict[Labels, int] = {(server,): BREAKER_LEVELS[state] for server, state in limiter.breakers().items()}
        gauges: dict[str, Mapping[Labels, int]] = {
            "rules": {(): len(rules.rules)},
            "rules_unreadable": {(): len(limiter.catalog.unreadable)},
            "breaker_state": breakers,
            **self._gauges(),
        }
        snapshot = self._metrics.snapshot(now_us, totals, gauges, self._cache_hits())
        remaining = snapshot.gauges["tokens_remaining"]
        snapshot.gauges["tokens_remaining"] = {
            (rule, key_label(key, self._keys)): value for (rule, key), value in remaining.items()
        }
        snapshot.worker = worker_status(limiter, self._started_us, now_us)
        return snapshot

    def _cache_hits(self) -> dict[str, int]:
        """Requests that the limiter has decided without its store, by what it knew."""
        decisions = self._limiter.backend.local_decisions
        if decisions is None:
            return {}
        return {"denials": decisions.denied_locally, "leases": decisions.leased_locally}

    async def publish(self, now_us: int) -> None:
        """Write the metrics of this worker; called about every second."""
        await asyncio.to_thread(self._worker_snapshots.publish, self.snapshot(now_us))
        if now_us - self._seen_at_us >= SEEN_INTERVAL_US:
            await self._publish_seen(now_us)
        if now_us - self._swept_at_us >= SWEEP_INTERVAL_US:
            self._swept_at_us = now_us
            await asyncio.to_thread(self._traffic_files.remove_stale)
        if self._last_uses is not None:
            uses = self._metrics.take_uses()
            if uses or self._last_uses.changed:
                await asyncio.to_thread(self._last_uses.publish, uses)

    async def exposition(self, now_us: int, accept: str = "") -> tuple[bytes, str]:
        """The metrics of all workers for Prometheus, and the content type."""
        return await asyncio.to_thread(self._exposition, self.snapshot(now_us), now_us, accept)

    def close(self, now_us: int) -> None:
        """Publish the last metrics of a worker that stops."""
        if self._last_uses is not None:
            self._last_uses.note(self._metrics.take_uses())
        self._worker_snapshots.publish(self.snapshot(now_us))

    def _exposition(self, snapshot: Snapshot, now_us: int, accept: str) -> tuple[bytes, str]:
        try:
            self._worker_snapshots.publish(snapshot)
        except OSError as error:  # such as a full disk: the last file is still valid, and now people look
            _log.warning("cannot write metrics: %s", error)
        snapshots = self._worker_snapshots.snapshots()
        merged = merge_snapshots(snapshots, now_us)
        workers = sum(1 for one in snapshots if one.at_us >= now_us - FRESH_US)
        merged.gauges["workers"] = {(): (workers, now_us)}
        merged.gauges["build_info"] = {(__version__,): (1, now_us)}
        return exposition(merged, self._prefix, accept)

    async def _publish_seen(self, now_us: int) -> None:
        keys, clients = self._metrics.keys, self._metrics.clients
        if keys.changed or clients.changed:
            keys.changed = clients.changed = False
            self._seen_at_us = now_us
            seen = LastSeen(dict(keys.last_us), dict(clients.last_us))
            await asyncio.to_thread(self._worker_snapshots.publish_seen, seen)
