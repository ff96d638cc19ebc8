"""Spans of the service for OpenTelemetry, continuing the trace of whoever calls.

Only where the configuration asks for it: a worker without has None in the place of a `Tracer`, which costs the check
path one comparison. Headgate needs only OpenTelemetry's API. What collects and sends spans is its SDK, which the
operator sets up as for any program (`opentelemetry-instrument headgate serve`, and the `OTEL_…` variables).

Spans say which rule decided, and how; never whom it was about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headgate import __version__
from headgate.errors import ConfigError
from headgate.service.observe.shown import shown_rule

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

    from headgate.core.decision import Decision

__all__ = ["Tracer", "describe", "tracer_of"]

Headers = Sequence[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case."""
Value = str | bool | int | float


def tracer_of(enabled: bool, provider: TracerProvider | None = None) -> Tracer | None:
    """What makes spans; None where none are wanted. ConfigError where they are, and OpenTelemetry is not installed."""
    if not enabled:
        return None
    try:
        import opentelemetry.trace  # noqa: F401 - to see whether it is there
    except ModuleNotFoundError:
        raise ConfigError(
            "tracing: enabled: the package 'opentelemetry-api' is missing: pip install 'headgate[otel]'"
        ) from None
    return Tracer(provider)


class Tracer:
    """Makes spans. `provider` is the global one unless given."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        from opentelemetry import propagate, trace

        self._tracer = trace.get_tracer("headgate", __version__, provider)
        self._extract = propagate.extract
        self._server = trace.SpanKind.SERVER
        self._error = trace.Status(trace.StatusCode.ERROR)

    @contextmanager
    def span(self, name: str, headers: Headers, attributes: Mapping[str, Value] | None = None) -> Iterator[Span]:
        """A span around the answer to a request with these headers, such as "headgate.check".

        An exception that passes through is told by its type only: its message may name a key.
        """
        context = self._extract({name.decode("latin-1"): value.decode("latin-1") for name, value in headers})
        with self._tracer.start_as_current_span(
            name, context, self._server, attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(self._error)
                raise


def describe(span: Span, decision: Decision) -> None:
    """What was decided, as attributes of a span."""
    span.set_attribute("headgate.allowed", decision.allowed)
    span.set_attribute("headgate.rule", shown_rule(decision.name))
    span.set_attribute("headgate.reason", decision.reason)
    span.set_attribute("headgate.remaining", decision.remaining)
