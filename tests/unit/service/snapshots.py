"""Helper for reading decision counts from a metrics snapshot."""

from __future__ import annotations

from crestgate.service.observability.snapshot import Snapshot

NAMES = ("allowed", "blocked", "shadow_blocked")


def decision_counts(snapshot: Snapshot) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Allowed, denied and shadow-denied counts by rule and dimension."""
    labels = sorted({labels for name in NAMES for labels in snapshot.counters.get(name, {})})
    return {one: tuple(snapshot.counter(name, *one) for name in NAMES) for one in labels}
