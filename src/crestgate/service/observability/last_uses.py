"""When each client limit was last used, across all workers and restarts.

A store drops a counter as soon as it is back to its initial state, which may be a moment after its last request. So
workers track the times themselves. The event loop only notes them (`WorkerMetrics.record_use`). About every second they
are written to the worker's file, which the other workers read, and every ten seconds to the history, which survives a
restart.

Bounded: the latest `MAX_USES` of each worker, and of the history. Counters are identified by a digest, because their
keys are names of people, or secrets.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING

from crestgate.errors import CrestgateError
from crestgate.history.port import MAX_USES
from crestgate.service.observability.recent_names import latest

if TYPE_CHECKING:
    from crestgate.history.port import History
    from crestgate.service.observability.worker_snapshots import WorkerSnapshots

__all__ = ["LastUses", "counter_id"]

MAX_RECORDED = 2_000
"""Times that are recorded in the history at once, the latest first; the rest follows in the next round."""
_log = logging.getLogger("crestgate")


def counter_id(counter: str) -> str:
    """The digest of a counter: see `worker_metrics.counter_name`."""
    return blake2b(counter.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class LastUses:
    """The times of one worker, and through its snapshots and the history those of all workers. Thread-safe."""

    def __init__(self, worker_snapshots: WorkerSnapshots, history: History) -> None:
        self._worker_snapshots = worker_snapshots
        self._history = history
        self._lock = Lock()
        self._known: dict[str, int] | None = None
        """The times of this worker, and at first of its predecessor."""
        self._unrecorded: dict[str, int] = {}
        self.changed = False
        """Whether there are times that are not in this worker's file yet."""

    def note(self, taken: Mapping[str, int]) -> None:
        """Add the times that the event loop has noted, by counter."""
        ids = {counter_id(counter): at_us for counter, at_us in taken.items()}
        with self._lock:
            self._known = _merge(self._worker_snapshots.own_uses() if self._known is None else self._known, ids)
            self._unrecorded = _merge(self._unrecorded, ids)
            self.changed = True

    def publish(self, taken: Mapping[str, int]) -> None:
        """Add the times, and write them to this worker's file."""
        self.note(taken)
        with self._lock:
            self._worker_snapshots.publish_uses(self._known or {})
            self.changed = False

    def record(self) -> None:
        """Record new times in the history; what fails is kept for the next call."""
        with self._lock:
            uses = dict(latest(self._unrecorded, MAX_RECORDED))
            for name in uses:
                del self._unrecorded[name]
        if not uses:
            return
        try:
            self._history.add_uses(uses)
        except CrestgateError as error:
            _log.warning("cannot record last uses in the history, will retry: %s", error)
            with self._lock:
                self._unrecorded = _merge(self._unrecorded, uses)

    def find(self, counters: Sequence[str]) -> list[int | None]:
        """When each of these counters was last used, in microseconds since the epoch; None if unknown."""
        ids = [counter_id(counter) for counter in counters]
        all_workers = self._worker_snapshots.uses()
        found = {name: all_workers[name] for name in ids if name in all_workers}
        try:
            found = _merge(found, self._history.last_uses(ids))
        except CrestgateError as error:
            _log.warning("cannot read last uses from the history: %s", error)
        with self._lock:
            known = self._known or {}
        found = _merge(found, {name: known[name] for name in ids if name in known})
        return [found.get(name) for name in ids]


def _merge(known: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """The later time of each counter, bounded to the latest `MAX_USES`."""
    merged = dict(known)
    for name, at_us in more.items():
        if at_us > merged.get(name, -1):
            merged[name] = at_us
    return merged if len(merged) <= MAX_USES else dict(latest(merged, MAX_USES))
