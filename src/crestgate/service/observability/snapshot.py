"""The metrics of one worker at one moment, as they are written to its file, and the sum over several workers.

Counters and histograms never decrease: a worker that is replaced continues from the last file of its predecessor.
Gauges count only for workers that published lately.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from crestgate.service.observability.metrics import BY_NAME, Labels

__all__ = ["FRESH_US", "HistogramCounts", "Snapshot", "WorkerStatus", "merge_snapshots"]

FRESH_US = 15_000_000
"""Age at which the gauges of a worker no longer count."""


@dataclass(slots=True)
class HistogramCounts:
    """Observations per bucket (the last is +Inf), and their sum."""

    counts: list[int]
    total: float = 0.0


@dataclass(slots=True)
class WorkerStatus:
    """The process of a worker, and how its store is doing."""

    pid: int
    started_us: int
    breakers: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By server: the state, and the last error while it fails."""
    policy_decisions: int = 0
    """Of the failure policy, in the last minute."""
    policy_decided_us: int = 0
    """When it last decided; 0 for never."""
    last_error: str = ""
    """The store error of that decision."""


@dataclass(slots=True)
class Snapshot:
    """All metrics of one worker, by the names in metrics.py."""

    at_us: int = 0
    sequence: int = 0
    """Increases with each snapshot of a worker."""
    counters: dict[str, dict[Labels, int]] = field(default_factory=dict)
    histograms: dict[str, HistogramCounts] = field(default_factory=dict)
    gauges: dict[str, dict[Labels, tuple[int, int]]] = field(default_factory=dict)
    """Value, and when it was set, in microseconds since the epoch."""
    worker: WorkerStatus | None = None

    def counter(self, name: str, *labels: str) -> int:
        """The value of one counter; 0 if nothing was counted."""
        return self.counters.get(name, {}).get(labels, 0)


def merge_snapshots(snapshots: Iterable[Snapshot], now_us: int) -> Snapshot:
    """The sum of all workers."""
    merged = Snapshot(at_us=now_us)
    for snapshot in snapshots:
        for name, counts in snapshot.counters.items():
            totals = merged.counters.setdefault(name, {})
            for labels, count in counts.items():
                totals[labels] = totals.get(labels, 0) + count
        for name, histogram in snapshot.histograms.items():
            merged.histograms[name] = _sum(merged.histograms.get(name), histogram)
        if snapshot.at_us >= now_us - FRESH_US:
            for name, values in snapshot.gauges.items():
                if name in BY_NAME:
                    _merge_gauge(merged.gauges.setdefault(name, {}), values, name)
    for name, rows in merged.gauges.items():
        max_series = BY_NAME[name].max_series
        if max_series is not None and len(rows) > max_series:
            merged.gauges[name] = dict(sorted(rows.items())[:max_series])
    return merged


def _merge_gauge(merged: dict[Labels, tuple[int, int]], values: dict[Labels, tuple[int, int]], name: str) -> None:
    order = 1 if BY_NAME[name].merge == "latest" else 0
    for labels, value in values.items():
        known = merged.get(labels)
        if known is None or value[order] >= known[order]:
            merged[labels] = value


def _sum(merged: HistogramCounts | None, one: HistogramCounts) -> HistogramCounts:
    """Buckets of another version cannot be added, and are left out."""
    if merged is None:
        return HistogramCounts(list(one.counts), one.total)
    if len(merged.counts) != len(one.counts):
        return merged
    return HistogramCounts([a + b for a, b in zip(merged.counts, one.counts, strict=True)], merged.total + one.total)
