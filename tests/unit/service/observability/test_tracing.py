"""Spans: continued from the caller's trace, with the decision, and without the key."""

from __future__ import annotations

import asyncio
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from crestgate import ConfigError, Limiter, RequestContext
from crestgate.service.observability.tracing import Tracer, create_tracer, describe

PARENT = [(b"host", b"x"), (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    made = create_tracer(True, provider)
    assert made is not None
    return made


def test_disabled_tracing_is_none() -> None:
    assert create_tracer(False) is None


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigError, match=r"pip install '.\[otel\]' in a clone of Crestgate"):
        create_tracer(True)
    assert create_tracer(False) is None


def test_continues_the_trace_of_the_caller(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    with tracer.span("crestgate.check", PARENT, {"crestgate.checks": 3}):
        pass
    (span,) = exporter.get_finished_spans()
    assert span.name == "crestgate.check"
    assert span.kind is trace.SpanKind.SERVER
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert span.attributes is not None
    assert span.attributes["crestgate.checks"] == 3


@pytest.mark.parametrize("value", [b"", b"nonsense", b"00-0-0-0", b"\xff\xfe"])
def test_malformed_traceparent_starts_a_new_trace(tracer: Tracer, exporter: InMemorySpanExporter, value: bytes) -> None:
    with tracer.span("crestgate.check", [(b"traceparent", value)]):
        pass
    (span,) = exporter.get_finished_spans()
    assert span.parent is None


def test_span_attributes_have_the_decision_and_no_key(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    limiter = Limiter("memory://", plans={"gold": "1/minute"})
    for _ in range(2):
        with tracer.span("crestgate.check", []) as span:
            describe(span, limiter.check("user:alice", "gold"))
    first, second = exporter.get_finished_spans()
    assert dict(first.attributes or {}) == {
        "crestgate.allowed": True,
        "crestgate.rule": "gold",
        "crestgate.reason": "ok",
        "crestgate.remaining": 0,
    }
    assert (second.attributes or {})["crestgate.reason"] == "limited"
    assert "alice" not in first.to_json() + second.to_json()


def test_rule_label_has_no_key(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    with Limiter.from_config(environ={"CRESTGATE_POLICIES": "[{key: alice, capacity: 1}]"}) as limiter:
        for context in (RequestContext(key="alice"), RequestContext()):
            with tracer.span("crestgate.check", []) as span:
                describe(span, limiter.check_request(context))
    spans = exporter.get_finished_spans()
    assert [(span.attributes or {})["crestgate.rule"] for span in spans] == ["policy", "no_rule"]


def test_errors_in_spans_have_only_their_type(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="alice"), tracer.span("crestgate.check", []):
        raise ValueError("user:alice is no key")
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "ValueError"
    assert "alice" not in span.to_json()


def test_spans_of_concurrent_requests_do_not_mix(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    async def request() -> None:
        with tracer.span("crestgate.check", []):
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*[request() for _ in range(5)])

    asyncio.run(main())
    spans = exporter.get_finished_spans()
    assert [span.parent for span in spans] == [None] * 5
    assert len({span.context.trace_id for span in spans if span.context}) == 5


def test_tracing_without_the_sdk_does_nothing() -> None:
    tracer = create_tracer(True)
    assert tracer is not None
    with tracer.span("crestgate.check", PARENT) as span:
        describe(span, Limiter("memory://").check("user:1", "1/minute"))
