"""Crestgate: rate limiting for Python services, exact in one process, across processes, and across machines."""

from crestgate.core.algorithms import Verdict, register_algorithm
from crestgate.core.context import RequestContext
from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.core.pressure import PressureEvent
from crestgate.errors import ConfigError, CrestgateError, RateLimitExceeded, StoreClosedError, StoreError
from crestgate.limiter.async_limiter import AsyncBound, AsyncLimiter
from crestgate.limiter.chain import Bound
from crestgate.limiter.limiter import Limiter
from crestgate.limiter.reservation import AsyncReservation, Reservation

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
    "PressureEvent",
    "RateLimitExceeded",
    "RequestContext",
    "Reservation",
    "StoreClosedError",
    "StoreError",
    "Verdict",
    "register_algorithm",
]
