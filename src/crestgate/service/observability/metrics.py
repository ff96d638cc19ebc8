"""Declarations of all metrics: name, type, help text, labels and buckets.

A new metric is one entry here and one call of `WorkerMetrics.count` or `observe` where it happens. Snapshots, their sum
over all workers and the Prometheus output follow from this table.

Labels are rules, dimensions, states and servers, never text that a client sends. The one exception is
`tokens_remaining`, which is off by default and bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from crestgate.observers.buckets import BATCH_BUCKETS, DURATION_BUCKETS

__all__ = ["BATCH_BUCKETS", "BY_NAME", "DURATION_BUCKETS", "METRICS", "SKEW_BUCKETS", "Labels", "MetricSpec"]

Labels = tuple[str, ...]
"""Label values, in the order of `MetricSpec.labels`."""

SKEW_BUCKETS: Final[list[float]] = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. Prometheus adds the configured prefix, and `_total` to counters."""

    name: str
    help: str
    kind: Literal["counter", "gauge", "histogram"] = "counter"
    labels: Labels = ()
    initial: tuple[Labels, ...] = ()
    """Label values that are reported as 0 before they are first counted. A metric without labels always is."""
    buckets: tuple[float, ...] = ()
    merge: Literal["max", "latest"] = "max"
    """How the gauges of several workers become one. Counters and histograms are added."""
    max_series: int | None = None
    """Bound of a gauge whose labels are keys. Such a gauge is left out while it is empty."""


METRICS: Final = (
    MetricSpec("allowed", "Requests that a limit allowed.", labels=("rule", "dimension")),
    MetricSpec("blocked", "Requests that a limit denied.", labels=("rule", "dimension")),
    MetricSpec("shadow_blocked", "Requests that a shadow rule would have denied.", labels=("rule", "dimension")),
    MetricSpec(
        "check_duration_seconds", "Duration of checks and batches.", "histogram", buckets=tuple(DURATION_BUCKETS)
    ),
    MetricSpec("batch_size", "Checks per batch.", "histogram", buckets=tuple(BATCH_BUCKETS)),
    MetricSpec(
        "clock_skew_seconds",
        "Absolute difference between client timestamps and the store's clock.",
        "histogram",
        buckets=tuple(SKEW_BUCKETS),
    ),
    MetricSpec("store_errors", "Checks and settlements that failed because the store did not respond."),
    MetricSpec("store_resets", "Corrupt counters and idempotency records in the shared file that were reset."),
    MetricSpec("store_logs_full", "Requests that found no room for a sliding log in the shared file."),
    MetricSpec("migrate_carried", "Counters that a migration carried to the new store."),
    MetricSpec("migrate_carried_back", "Counters that a migration carried back to the old store."),
    MetricSpec("migrate_followed", "Counters to be moved that had been moved the other way just before."),
    MetricSpec("migrate_from_errors", "Counters that were not carried because the old store failed."),
    MetricSpec("migrate_to_errors", "Counters that were not carried because the new store failed."),
    MetricSpec("fail_open", "Checks that were allowed because the store did not respond."),
    MetricSpec("rules_reload_failures", "Failed rule reloads; the previous rules stay in force."),
    MetricSpec("envoy_reload_failures", "Failed reloads of descriptor limits; the previous ones stay in force."),
    MetricSpec("certificate_reload_failures", "Failed reloads of certificates; the previous one stays in use."),
    MetricSpec("replayed", "Idempotent retries that got the recorded response."),
    MetricSpec("webhook_dropped", "Pressure events that were not delivered: the webhook was too slow, or failed."),
    MetricSpec("pressure_unlogged", "Pressure events that were not logged, because there were too many at once."),
    MetricSpec(
        "pressure_transitions",
        "Counters that entered a pressure state.",
        labels=("state",),
        initial=(("normal",), ("warning",), ("throttled",)),
    ),
    MetricSpec("requests", "Requests over HTTP, gRPC and RESP, by plane and status.", labels=("plane", "status")),
    MetricSpec(
        "cache_hits",
        "Cache hits.",
        labels=("cache",),
        initial=(("denials",), ("idempotency",), ("leases",), ("rules",)),
    ),
    MetricSpec("cache_misses", "Cache misses.", labels=("cache",), initial=(("idempotency",), ("rules",))),
    MetricSpec(
        "breaker_state",
        "Circuit breaker, the worst of all workers: 0 closed, 1 half-open, 2 open.",
        "gauge",
        ("store",),
    ),
    MetricSpec(
        "tokens_remaining",
        "Remaining quota after the last check, of some counters.",
        "gauge",
        ("rule", "key"),
        merge="latest",
        max_series=1_000,
    ),
    MetricSpec("rules", "Rules in force.", "gauge"),
    MetricSpec("rules_unreadable", "Stored rules and other records that cannot be read or used.", "gauge"),
    MetricSpec(
        "certificate_expiry_timestamp_seconds",
        "When the TLS certificate in use expires, in Unix time.",
        "gauge",
        ("certificate",),
        merge="latest",
    ),
    MetricSpec("workers", "Workers that published metrics lately.", "gauge"),
    MetricSpec("build_info", "The running version; always 1.", "gauge", ("version",)),
)
BY_NAME: Final = {metric.name: metric for metric in METRICS}
