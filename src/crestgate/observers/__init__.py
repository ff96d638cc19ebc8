"""Observers of limiters: metrics and traces of programs that use the library, without the service.

    from crestgate.observers.prometheus import PrometheusObserver
    limiter = Limiter("redis://localhost", observer=PrometheusObserver())

`crestgate.observers.opentelemetry` has one for OpenTelemetry. Further ones derive from `crestgate.Observer`.
"""
