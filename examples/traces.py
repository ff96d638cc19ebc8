"""OpenTelemetry: a span for each call to a store that is not local, in the trace of the request that it belongs to."""

from tempfile import TemporaryDirectory

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from crestgate import Limiter
from crestgate.observers.opentelemetry import OpenTelemetryObserver

exporter = InMemorySpanExporter()  # yours sends them to a collector
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

observer = OpenTelemetryObserver(tracer_provider=provider)
with TemporaryDirectory() as folder:
    limiter = Limiter(f"sqlite:///{folder}/limits.db", observer=observer)
    with provider.get_tracer("shop").start_as_current_span("POST /orders"):
        limiter.check("user:alice", "1/minute")
        limiter.check("user:alice", "1/minute")
    limiter.close()

for span in exporter.get_finished_spans():
    attributes = dict(span.attributes or {})
    print(span.name, attributes.get("crestgate.rule"), attributes.get("crestgate.allowed"))
