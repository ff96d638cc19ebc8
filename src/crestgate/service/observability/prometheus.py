"""The metrics of all workers in the text formats of Prometheus and OpenMetrics.

prometheus_client writes the text, and so escapes label values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from crestgate.service.observability.metrics import METRICS, Labels, MetricSpec
from crestgate.service.observability.snapshot import HistogramCounts, Snapshot

__all__ = ["CONTENT_TYPE", "exposition", "families"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(merged: Snapshot, prefix: str, accept: str = "") -> tuple[bytes, str]:
    """The text for this Accept header, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(list(families(merged, prefix))))
    if "application/openmetrics-text" in accept:
        text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # it has no types
        return text, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), CONTENT_TYPE


def families(merged: Snapshot, prefix: str) -> Iterator[Metric]:
    """All metrics, also those that have counted nothing yet."""
    for spec in METRICS:
        name = f"{prefix}_{spec.name}"
        if spec.kind == "histogram":
            yield _histogram(name, spec, merged.histograms.get(spec.name))
        elif spec.kind == "counter":
            counter = CounterMetricFamily(name, spec.help, labels=spec.labels)
            _add_samples(counter, spec, merged.counters.get(spec.name, {}))
            yield counter
        else:
            gauges = {labels: value for labels, (value, _) in merged.gauges.get(spec.name, {}).items()}
            if gauges or spec.max_series is None:
                gauge = GaugeMetricFamily(name, spec.help, labels=spec.labels)
                _add_samples(gauge, spec, gauges)
                yield gauge


def _add_samples(
    family: CounterMetricFamily | GaugeMetricFamily, spec: MetricSpec, values: Mapping[Labels, int]
) -> None:
    initial = spec.initial if spec.labels else ((),)
    for labels, value in sorted({**dict.fromkeys(initial, 0), **values}.items()):
        family.add_metric(labels, value)


def _histogram(name: str, spec: MetricSpec, observed: HistogramCounts | None) -> HistogramMetricFamily:
    observed = HistogramCounts([0] * (len(spec.buckets) + 1)) if observed is None else observed
    cumulative = 0
    rows: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, spec.buckets), "+Inf"], observed.counts, strict=True):
        cumulative += count
        rows.append((bound, cumulative))
    return HistogramMetricFamily(name, spec.help, buckets=rows, sum_value=observed.total)


class _Collector(Collector):
    """A fixed list of metrics."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics
