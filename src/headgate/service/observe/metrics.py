"""The numbers of all workers as Prometheus reads them.

Names begin with the configured prefix. Labels are rules, dimensions, states and servers, never what a client sends; the
one exception is `tokens_remaining`, which is off unless asked for, and names at most 1,000 counters (see recent.py), by
digest unless `logs: {keys: plain}`. prometheus_client writes the text, and so escapes what stands in labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from headgate.service.observe.snapshot import Measured, Snapshot
from headgate.service.observe.tally import BATCH_BUCKETS, DURATION_BUCKETS, SKEW_BUCKETS

__all__ = ["BREAKER_STATES", "CONTENT_TYPE", "exposition", "families"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BREAKER_STATES = {"closed": 0, "half-open": 1, "open": 2}
EVENTS = {
    "store_errors": "Checks and settlements that a store did not answer.",
    "store_resets": "Damaged counters and idempotency records in the shared file that were reset.",
    "store_logs_full": "Requests that found no room for a sliding log in the shared file.",
    "fail_open": "Checks that were let pass because their store did not answer.",
    "rules_reload_failures": "How often rules could not be read; those known before stay in force.",
    "envoy_reload_failures": "How often limits on descriptors could not be read; those known before stay in force.",
    "replayed": "Idempotent repeats that got the first answer.",
    "webhook_dropped": "Pressure events that were not posted: the webhook was too slow, or failed.",
    "pressure_unlogged": "Pressure events that were not logged, because there were too many at once.",
}
STATES = ("normal", "warning", "throttled")


def exposition(whole: Snapshot, prefix: str, version: str, workers: int, accept: str = "") -> tuple[bytes, str]:
    """The text for a scraper that accepts this, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(list(families(whole, prefix, version, workers))))
    if "application/openmetrics-text" in accept:
        text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # it has no types
        return text, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), CONTENT_TYPE


def families(whole: Snapshot, prefix: str, version: str, workers: int) -> Iterator[Metric]:
    """Every metric there is, also those that have counted nothing yet."""
    yield from _decisions(whole, prefix)
    yield _histogram(
        f"{prefix}_check_duration_seconds", "How long checks and batches took.", DURATION_BUCKETS, whole.durations
    )
    yield _histogram(f"{prefix}_batch_size", "Checks in a batch.", BATCH_BUCKETS, whole.batches)
    yield _histogram(
        f"{prefix}_clock_skew_seconds",
        "How far the timestamps of callers are from the store's clock, in either direction.",
        SKEW_BUCKETS,
        whole.skews,
    )
    for event, told in EVENTS.items():
        yield CounterMetricFamily(f"{prefix}_{event}", told, value=whole.events.get(event, 0))
    yield from _labelled(whole, prefix)
    yield GaugeMetricFamily(f"{prefix}_rules", "Rules in force.", value=whole.rules)
    yield GaugeMetricFamily(f"{prefix}_workers", "Workers that told their numbers lately.", value=workers)
    build = GaugeMetricFamily(f"{prefix}_build_info", "The version that runs; always 1.", labels=["version"])
    build.add_metric([version], 1)
    yield build


def _decisions(whole: Snapshot, prefix: str) -> Iterator[Metric]:
    labels = ["rule", "dimension"]
    allowed = CounterMetricFamily(f"{prefix}_allowed", "Requests that a limit admitted.", labels=labels)
    blocked = CounterMetricFamily(f"{prefix}_blocked", "Requests that a limit denied.", labels=labels)
    shadow = CounterMetricFamily(f"{prefix}_shadow_blocked", "Requests a shadow rule would have denied.", labels=labels)
    for rule, dimension, admitted, denied, shadowed in whole.decisions:
        if admitted or denied:
            allowed.add_metric([rule, dimension], admitted)
            blocked.add_metric([rule, dimension], denied)
        if shadowed:
            shadow.add_metric([rule, dimension], shadowed)
    yield from (allowed, blocked, shadow)


def _labelled(whole: Snapshot, prefix: str) -> Iterator[Metric]:
    pressure = CounterMetricFamily(
        f"{prefix}_pressure_transitions", "Counters that went into a state of pressure.", labels=["state"]
    )
    for state in STATES:
        pressure.add_metric([state], whole.pressure.get(state, 0))
    requests = CounterMetricFamily(
        f"{prefix}_requests", "Requests over HTTP and gRPC, by plane and status.", labels=["plane", "status"]
    )
    for plane, status, count in whole.requests:
        requests.add_metric([plane, str(status)], count)
    hits = CounterMetricFamily(f"{prefix}_cache_hits", "What was found in a cache.", labels=["cache"])
    misses = CounterMetricFamily(f"{prefix}_cache_misses", "What was not.", labels=["cache"])
    for cache, (found, missed) in sorted(_caches(whole).items()):
        hits.add_metric([cache], found)
        misses.add_metric([cache], missed)
    breakers = GaugeMetricFamily(
        f"{prefix}_breaker_state", "The worst of all workers': 0 closed, 1 half-open, 2 open.", labels=["store"]
    )
    for server, number in sorted(whole.breakers.items()):
        breakers.add_metric([server], number)
    yield from (pressure, requests, hits, misses, breakers)
    if whole.remaining:
        remaining = GaugeMetricFamily(
            f"{prefix}_tokens_remaining", "What remained after the last check, of some.", labels=["rule", "key"]
        )
        for rule, key, left, _ in whole.remaining:
            remaining.add_metric([rule, key], left)
        yield remaining


def _caches(whole: Snapshot) -> dict[str, tuple[int, int]]:
    """Hits and misses. Rules are a cache of the rule database, from which every check is answered: a miss is when they
    were read anew. Records of idempotent requests are the other one: a hit is a repeat."""
    checks = sum(whole.durations.counts) if whole.durations is not None else 0
    own = {"rules": checks, "idempotency": whole.events.get("replayed", 0)}
    known = dict(whole.caches)
    for cache, hits in own.items():
        found, missed = known.get(cache, (0, 0))
        known[cache] = (found + hits, missed)
    return known


def _histogram(name: str, told: str, buckets: Sequence[float], measured: Measured | None) -> HistogramMetricFamily:
    counts = [0] * (len(buckets) + 1) if measured is None else measured.counts
    below = 0
    rows: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, buckets), "+Inf"], counts, strict=True):
        below += count
        rows.append((bound, below))
    return HistogramMetricFamily(name, told, buckets=rows, sum_value=0.0 if measured is None else measured.total)


class _Collector(Collector):
    """Gives what it was made with."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics
