"""OpenTelemetry spans of the service, continuing the trace of the caller.

Off by default: a worker without tracing has None in place of a `Tracer`, which costs a check one comparison. Crestgate
needs only the OpenTelemetry API. The SDK that collects and exports spans is set up by the operator as for any program
(`opentelemetry-instrument crestgate serve`, and the `OTEL_…` variables).

Spans name the rule and the decision, never the subject.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from crestgate import __version__
from crestgate.errors import ConfigError, install_hint
from crestgate.service.context import Headers
from crestgate.service.observability.labels import rule_label

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

    from crestgate.core.decision import Decision

__all__ = ["Tracer", "create_tracer", "describe"]

"""As in ASGI: names in lower case."""
Value = str | bool | int | float


def create_tracer(enabled: bool, provider: TracerProvider | None = None) -> Tracer | None:
    """A tracer; None if tracing is disabled. ConfigError if OpenTelemetry is not installed."""
    if not enabled:
        return None
    try:
        import opentelemetry.trace  # noqa: F401 - to see whether it is installed
    except ModuleNotFoundError:
        raise ConfigError(
            f"tracing: enabled: the package 'opentelemetry-api' is missing: {install_hint('otel')}"
        ) from None
    return Tracer(provider)


class Tracer:
    """Creates spans. `provider` defaults to the global one."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        from opentelemetry import propagate, trace

        self._tracer = trace.get_tracer("crestgate", __version__, provider)
        self._extract = propagate.extract
        self._server = trace.SpanKind.SERVER
        self._error = trace.Status(trace.StatusCode.ERROR)

    @contextmanager
    def span(self, name: str, headers: Headers, attributes: Mapping[str, Value] | None = None) -> Iterator[Span]:
        """A span around the handling of a request with these headers, such as "crestgate.check".

        An exception is recorded by its type only: its message may contain a key.
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
    """Set the attributes of a decision."""
    span.set_attribute("crestgate.allowed", decision.allowed)
    span.set_attribute("crestgate.rule", rule_label(decision.name))
    span.set_attribute("crestgate.reason", decision.reason)
    span.set_attribute("crestgate.remaining", decision.remaining)
