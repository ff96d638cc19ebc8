"""The part of the status that the workers of a node publish; `/api/v1/status` and `crestgate status` add the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crestgate import __version__
from crestgate.rules.timestamps import format_timestamp
from crestgate.service.observability.snapshot import FRESH_US, Snapshot

__all__ = ["is_current", "node_status"]

NOW_US = 5_000_000
"""A decision of the failure policy is current for so long."""


def is_current(snapshot: Snapshot, now_us: int) -> bool:
    """Whether the worker published it lately."""
    return snapshot.worker is not None and snapshot.at_us >= now_us - FRESH_US


def node_status(snapshots: Mapping[int, Snapshot], now_us: int, expected: int) -> dict[str, Any]:
    """Workers, decisions, and what the failure policy does. At least one snapshot is current. A worker that stopped
    publishing is stuck, and listed as silent: one that ended would have been replaced, under the same number."""
    known = {number: (one, one.worker) for number, one in sorted(snapshots.items()) if one.worker}
    statuses = [status for snapshot, status in known.values() if is_current(snapshot, now_us)]
    return {
        "version": __version__,
        "uptime_seconds": max(now_us - min(status.started_us for status in statuses), 0) / 1_000_000,
        "workers_expected": expected,
        "workers": [
            {
                "worker": number,
                "pid": status.pid,
                "started_at": format_timestamp(status.started_us),
                "seen_at": format_timestamp(snapshot.at_us),
                "silent": not is_current(snapshot, now_us),
                "policy_decisions_last_minute": status.policy_decisions if is_current(snapshot, now_us) else 0,
            }
            for number, (snapshot, status) in known.items()
        ],
        "decisions": {
            name: sum(sum(one.counters.get(counter, {}).values()) for one in snapshots.values())
            for name, counter in (("allowed", "allowed"), ("denied", "blocked"), ("fail_open", "fail_open"))
        },
        "policy_decides_now": any(now_us - status.policy_decided_us < NOW_US for status in statuses),
        "policy_decisions_last_minute": sum(status.policy_decisions for status in statuses),
    }
