"""OpenTelemetry: metrics with the same names, and a span for each call to a remote store."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from crestgate import AsyncLimiter, Limiter, StoreError
from crestgate.observers.buckets import DURATION_BUCKETS
from crestgate.observers.opentelemetry import OpenTelemetryObserver
from slow_store import SlowStore


class Telemetry:
    """An SDK that keeps what it is given."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.observer = OpenTelemetryObserver(self.tracers, MeterProvider([self.reader]))

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Attributes and value of each series of a metric; of a histogram its point."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return [
            (dict(point.attributes or {}), getattr(point, "value", point))
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


def remote_store() -> SlowStore:
    store = SlowStore()
    store.gate = threading.Semaphore(1_000)
    return store


def test_metrics(telemetry: Telemetry) -> None:
    limiter = Limiter("memory://", plans={"gold": "2/minute"}, observer=telemetry.observer)
    for _ in range(3):
        limiter.check("user:42", "gold")
    limiter.peek("user:42", "gold")
    assert telemetry.points("crestgate.allowed") == [({"rule": "gold", "dimension": "key"}, 2)]
    assert telemetry.points("crestgate.blocked") == [({"rule": "gold", "dimension": "key"}, 1)]
    ((_, durations),) = telemetry.points("crestgate.check.duration")
    assert durations.count == 3
    assert list(durations.explicit_bounds) == DURATION_BUCKETS
    ((_, batches),) = telemetry.points("crestgate.batch.size")
    assert (batches.count, batches.sum) == (4, 4)
    assert telemetry.spans() == [], "calls of local stores have none"


def test_failures_and_breakers(telemetry: Telemetry) -> None:
    limiter = AsyncLimiter("redis://127.0.0.1:1?timeout_ms=200", observer=telemetry.observer)

    async def checks() -> None:
        for _ in range(4):
            await limiter.check("user:42", "1/minute")
        await limiter.aclose()

    asyncio.run(checks())
    assert telemetry.points("crestgate.store.errors") == [({}, 4)]
    assert telemetry.points("crestgate.fail_open") == [({}, 4)]
    ((attributes, level),) = telemetry.points("crestgate.breaker.state")
    assert attributes == {"store": "Redis at 127.0.0.1:1"}
    assert level in (1, 2), "open, or half-open after a second"
    assert {span.name for span in telemetry.spans()} == {"crestgate.check"}


def test_span_of_a_check(telemetry: Telemetry) -> None:
    limiter = Limiter(remote_store(), plans={"gold": "2/minute"}, observer=telemetry.observer)
    with telemetry.tracers.get_tracer("test").start_as_current_span("request") as parent:
        limiter.check("user:42", "gold")
    span, request = telemetry.spans()
    assert (span.name, span.kind) == ("crestgate.check", trace.SpanKind.CLIENT)
    assert span.parent == parent.get_span_context()
    assert dict(span.attributes or {}) == {
        "crestgate.store": "the store",
        "crestgate.allowed": True,
        "crestgate.rule": "gold",
        "crestgate.reason": "ok",
        "crestgate.remaining": 1,
    }
    assert request.start_time is not None
    assert request.end_time is not None
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.end_time
    assert span.status.is_unset
    assert "user:42" not in span.to_json()


def test_span_of_a_task_belongs_to_the_trace_of_that_task(telemetry: Telemetry) -> None:
    """Both checks are in one batch, which one of the tasks sends."""

    async def checks() -> None:
        store = SlowStore()
        limiter = AsyncLimiter(store, observer=telemetry.observer)
        await limiter.connect()

        async def request(name: str) -> None:
            with telemetry.tracers.get_tracer("test").start_as_current_span(name):
                await limiter.check(name, "1/minute")

        tasks = [asyncio.create_task(request(name)) for name in ("first", "second")]
        await store.answer_all()
        await asyncio.gather(*tasks)
        assert len(store.batches) == 1

    asyncio.run(checks())
    spans = {span.context.span_id: span for span in telemetry.spans() if span.context is not None}
    parents = [spans[span.parent.span_id].name for span in spans.values() if span.parent is not None]
    assert sorted(parents) == ["first", "second"]


def test_spans_of_other_calls(telemetry: Telemetry) -> None:
    limiter = Limiter(remote_store(), observer=telemetry.observer)
    limiter.check_many([("a", "1/minute"), ("a", "1/minute"), ("b", "1/minute")])
    limiter.peek("a", "1/minute")
    limiter.reset("a", "1/minute")
    with limiter.reserve("c", "10/minute", cost=5) as reservation:
        reservation.settle(1)
    spans = telemetry.spans()
    names = ["crestgate.batch", "crestgate.peek", "crestgate.reset", "crestgate.check", "crestgate.settle"]
    assert [span.name for span in spans] == names
    assert dict(spans[0].attributes or {}) == {
        "crestgate.store": "the store",
        "crestgate.checks": 3,
        "crestgate.denied": 1,
    }


def test_error_is_recorded_by_its_type(telemetry: Telemetry) -> None:
    store = remote_store()
    store.failure = StoreError("user:42 is in this message")
    Limiter(store, observer=telemetry.observer).check("user:42", "1/minute")
    (span,) = telemetry.spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    attributes = dict(span.attributes or {})
    assert (attributes["error.type"], attributes["crestgate.reason"]) == ("StoreError", "fail_open")
    assert "user:42" not in span.to_json()


def test_without_an_sdk_nothing_happens() -> None:
    assert Limiter(remote_store(), observer=OpenTelemetryObserver()).check("a", "1/minute").allowed


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "crestgate.observers.opentelemetry")
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(ImportError, match=r"pip install '.\[otel\]'"):
        import crestgate.observers.opentelemetry  # noqa: F401
