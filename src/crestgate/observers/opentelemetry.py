"""OpenTelemetry metrics of limiters, and spans of their calls to remote stores.

Crestgate needs only the OpenTelemetry API. The SDK that collects and exports is set up by the program, as for any
other library. Exported to Prometheus, the metrics have the names and labels of crestgate/observers/prometheus.py.

A span is created when its call has ended, with the time at which it began: a check costs one call of the observer. It
is a child of the span in whose context the limiter was called. Calls of local stores take microseconds and have no
span. Spans name the rule and the decision, never the key; an error is recorded by its type only, since its message may
contain one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from crestgate.core.bounds import is_text
from crestgate.errors import StoreError, install_hint
from crestgate.limiter.observer import LimiterCall, Observer, StoreStatus
from crestgate.observers.breakers import BreakerLevels
from crestgate.observers.buckets import BATCH_BUCKETS, DURATION_BUCKETS
from crestgate.observers.labels import RuleLabels

try:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
    from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider, get_tracer
except ModuleNotFoundError as error:
    raise ImportError(f"crestgate.observers.opentelemetry needs {error.name}: {install_hint('otel')}") from error

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

__all__ = ["OpenTelemetryObserver"]


class OpenTelemetryObserver(Observer):
    """Counts by a meter, and traces by a tracer. Several limiters may share an observer."""

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        """The providers default to the global ones."""
        from crestgate import __version__

        self._tracer = get_tracer("crestgate", __version__, tracer_provider)
        meter = get_meter("crestgate", __version__, meter_provider)
        self._labels = RuleLabels()
        self._breakers = BreakerLevels()
        self._allowed = meter.create_counter("crestgate.allowed", "{request}", "Requests that a limit allowed.")
        self._blocked = meter.create_counter("crestgate.blocked", "{request}", "Requests that a limit denied.")
        self._shadow_blocked = meter.create_counter(
            "crestgate.shadow_blocked", "{request}", "Requests that a shadow rule would have denied."
        )
        self._durations = meter.create_histogram(
            "crestgate.check.duration",
            "s",
            "Duration of checks and batches.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS,
        )
        self._batches = meter.create_histogram(
            "crestgate.batch.size",
            "{request}",
            "Requests per store call.",
            explicit_bucket_boundaries_advisory=BATCH_BUCKETS,
        )
        self._store_errors = meter.create_counter(
            "crestgate.store.errors", "{request}", "Requests that failed because the store did not respond."
        )
        self._fail_open = meter.create_counter(
            "crestgate.fail_open", "{request}", "Checks that were allowed because the store did not respond."
        )
        meter.create_observable_gauge(
            "crestgate.breaker.state",
            [self._read_breakers],
            "{state}",
            "Circuit breaker of each server: 0 closed, 1 half-open, 2 open.",
        )

    def attached(self, status: StoreStatus) -> None:
        self._breakers.add(status)

    def called(self, call: LimiterCall) -> None:
        if call.operation == "check":
            self._count(call)
        if call.remote:
            self._trace(call)

    def batch_sent(self, size: int) -> None:
        self._batches.record(size)

    def store_failed(self, error: StoreError, requests: int) -> None:
        self._store_errors.add(requests)

    def _count(self, call: LimiterCall) -> None:
        for decision, dimension in call.checks:
            counter = self._allowed if decision.allowed else self._blocked
            counter.add(1, self._attributes(decision.name, dimension))
            if decision.reason == "fail_open":
                self._fail_open.add(1)
        for shadow, dimension in call.shadow_denials:
            self._shadow_blocked.add(1, self._attributes(shadow.name, dimension))
        self._durations.record(call.seconds)

    def _attributes(self, name: str, dimension: str) -> dict[str, str]:
        rule, dimension = self._labels.get(name, dimension)
        return {"rule": rule, "dimension": dimension}

    def _trace(self, call: LimiterCall) -> None:
        end_ns = time.time_ns()
        start_ns = end_ns - int(call.seconds * 1_000_000_000)
        name = f"crestgate.{call.operation}" if len(call.checks) < 2 else "crestgate.batch"
        span = self._tracer.start_span(name, kind=SpanKind.CLIENT, start_time=start_ns)
        if span.is_recording():
            span.set_attributes(self._span_attributes(call))
            if call.error is not None:
                span.set_status(Status(StatusCode.ERROR))
        span.end(end_ns)

    def _span_attributes(self, call: LimiterCall) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {}
        if is_text(call.store):
            attributes["crestgate.store"] = call.store
        if len(call.checks) == 1:
            decision, dimension = call.checks[0]
            attributes["crestgate.allowed"] = decision.allowed
            attributes["crestgate.rule"] = self._labels.get(decision.name, dimension)[0]
            attributes["crestgate.reason"] = decision.reason
            attributes["crestgate.remaining"] = decision.remaining
        elif call.checks:
            attributes["crestgate.checks"] = len(call.checks)
            attributes["crestgate.denied"] = sum(not decision.allowed for decision, _ in call.checks)
        if call.error is not None:
            attributes["error.type"] = type(call.error).__name__
        return attributes

    def _read_breakers(self, _: CallbackOptions) -> Iterator[Observation]:
        for server, level in self._breakers.read().items():
            yield Observation(level, {"store": server})
