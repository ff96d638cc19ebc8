"""Prometheus metrics of limiters, with the names and labels of the service's.

    allowed_total, blocked_total {rule, dimension}      decisions, by the limit that decided
    shadow_blocked_total {rule, dimension}              shadow rules that would have denied
    check_duration_seconds                              checks and batches
    batch_size                                          requests per store call
    store_errors_total, fail_open_total                 requests that the store did not decide, and those admitted then
    breaker_state {store}                               0 closed, 1 half-open, 2 open

`peek` and `reset` are not counted. `acquire` is counted once per attempt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from crestgate.errors import ConfigError, StoreError, install_hint
from crestgate.limiter.observer import LimiterCall, Observer, StoreStatus
from crestgate.observers.breakers import BreakerLevels
from crestgate.observers.buckets import BATCH_BUCKETS, DURATION_BUCKETS
from crestgate.observers.labels import RuleLabels

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import GaugeMetricFamily
except ModuleNotFoundError as error:
    raise ImportError(f"crestgate.observers.prometheus needs {error.name}: {install_hint('prometheus')}") from error

__all__ = ["PrometheusObserver"]

_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_RULE = ("rule", "dimension")


class PrometheusObserver(Observer):
    """Counts in a Prometheus registry. Several limiters may share an observer; a registry has one for each prefix."""

    def __init__(self, registry: CollectorRegistry | None = None, prefix: str = "crestgate") -> None:
        """`registry` defaults to the client library's global one."""
        if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
            raise ConfigError(f"prefix must be 1 to 64 letters, digits and '_', no digit first, not {prefix!r}")
        registry = REGISTRY if registry is None else registry
        if not isinstance(registry, CollectorRegistry):
            raise ConfigError(f"registry must be a prometheus_client.CollectorRegistry, not {registry!r}")
        self._labels = RuleLabels()
        self._breakers = BreakerLevels()

        def counter(name: str, documentation: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, documentation, labels, namespace=prefix, registry=registry)

        def histogram(name: str, documentation: str, buckets: list[float]) -> Histogram:
            return Histogram(name, documentation, namespace=prefix, buckets=buckets, registry=registry)

        try:
            self._allowed = counter("allowed", "Requests that a limit allowed.", _RULE)
            self._blocked = counter("blocked", "Requests that a limit denied.", _RULE)
            self._shadow_blocked = counter("shadow_blocked", "Requests that a shadow rule would have denied.", _RULE)
            self._durations = histogram("check_duration_seconds", "Duration of checks and batches.", DURATION_BUCKETS)
            self._batches = histogram("batch_size", "Requests per store call.", BATCH_BUCKETS)
            self._store_errors = counter("store_errors", "Requests that failed because the store did not respond.")
            self._fail_open = counter("fail_open", "Checks that were allowed because the store did not respond.")
            registry.register(_BreakerCollector(f"{prefix}_breaker_state", self._breakers))
        except ValueError as error:
            raise ConfigError(
                f"this Prometheus registry already has metrics with the prefix {prefix!r}: use one PrometheusObserver "
                "for all limiters of a process, or give another prefix"
            ) from error

    def attached(self, status: StoreStatus) -> None:
        self._breakers.add(status)

    def called(self, call: LimiterCall) -> None:
        if call.operation != "check":
            return
        for decision, dimension in call.checks:
            counter = self._allowed if decision.allowed else self._blocked
            counter.labels(*self._labels.get(decision.name, dimension)).inc()
            if decision.reason == "fail_open":
                self._fail_open.inc()
        for shadow, dimension in call.shadow_denials:
            self._shadow_blocked.labels(*self._labels.get(shadow.name, dimension)).inc()
        self._durations.observe(call.seconds)

    def batch_sent(self, size: int) -> None:
        self._batches.observe(size)

    def store_failed(self, error: StoreError, requests: int) -> None:
        self._store_errors.inc(requests)


class _BreakerCollector:
    """A gauge whose values are read when Prometheus asks for them."""

    def __init__(self, name: str, breakers: BreakerLevels) -> None:
        self._name = name
        self._breakers = breakers

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield self._gauge()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauge = self._gauge()
        for server, level in sorted(self._breakers.read().items()):
            gauge.add_metric([server], level)
        yield gauge

    def _gauge(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            self._name, "Circuit breaker of each server: 0 closed, 1 half-open, 2 open.", labels=["store"]
        )
