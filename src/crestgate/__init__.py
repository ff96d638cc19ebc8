"""Crestgate: rate limiting for Python services, exact in one process, across processes, and across machines.

The public names are imported from their modules when they are first used, so that `import crestgate` costs next to
nothing and a program without asyncio does not pay for it.
"""

TYPE_CHECKING = False
"""As type checkers know it: importing `typing` for it would be most of the time that this module takes."""

if TYPE_CHECKING:  # what type checkers and editors see; _MODULES is the same for the interpreter
    from crestgate.core.algorithms import Verdict, register_algorithm
    from crestgate.core.context import RequestContext
    from crestgate.core.decision import Decision
    from crestgate.core.limit import Limit
    from crestgate.core.pressure import PressureEvent
    from crestgate.errors import ConfigError, CrestgateError, RateLimitExceeded, StoreClosedError, StoreError
    from crestgate.limiter.async_limiter import AsyncBound, AsyncLimiter
    from crestgate.limiter.chain import Bound
    from crestgate.limiter.limiter import Limiter
    from crestgate.limiter.observer import LimiterCall, ObservedCheck, Observer, StoreStatus
    from crestgate.limiter.reservation import AsyncReservation, Reservation
    from crestgate.stores.spec import Migration

__version__ = "0.1.0"

__all__ = [
    "AsyncBound",
    "AsyncLimiter",
    "AsyncReservation",
    "Bound",
    "ConfigError",
    "CrestgateError",
    "Decision",
    "Limit",
    "Limiter",
    "LimiterCall",
    "Migration",
    "ObservedCheck",
    "Observer",
    "PressureEvent",
    "RateLimitExceeded",
    "RequestContext",
    "Reservation",
    "StoreClosedError",
    "StoreError",
    "StoreStatus",
    "Verdict",
    "register_algorithm",
]

_MODULES = {
    "AsyncBound": "limiter.async_limiter",
    "AsyncLimiter": "limiter.async_limiter",
    "AsyncReservation": "limiter.reservation",
    "Bound": "limiter.chain",
    "ConfigError": "errors",
    "CrestgateError": "errors",
    "Decision": "core.decision",
    "Limit": "core.limit",
    "Limiter": "limiter.limiter",
    "LimiterCall": "limiter.observer",
    "Migration": "stores.spec",
    "ObservedCheck": "limiter.observer",
    "Observer": "limiter.observer",
    "PressureEvent": "core.pressure",
    "RateLimitExceeded": "errors",
    "RequestContext": "core.context",
    "Reservation": "limiter.reservation",
    "StoreClosedError": "errors",
    "StoreError": "errors",
    "StoreStatus": "limiter.observer",
    "Verdict": "core.algorithms",
    "register_algorithm": "core.algorithms",
}
"""Where each public name is defined, below this package."""


def __getattr__(name: str) -> object:
    """Import a public name at its first use; afterwards it is an attribute as any other."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
