"""Headgate: rate limiting for Python services, exact in one process, across processes, and across machines."""

from headgate.core.algorithms import Verdict, register_algorithm
from headgate.core.decision import Decision
from headgate.core.limit import Limit
from headgate.core.pressure import PressureEvent
from headgate.embedded.async_limiter import AsyncLimiter
from headgate.embedded.limiter import Limiter
from headgate.engine.async_limiter import AsyncBound
from headgate.engine.bound import Bound
from headgate.engine.reservation import AsyncReservation, Reservation
from headgate.errors import ConfigError, HeadgateError, RateLimitExceeded, StoreClosed, StoreError
from headgate.rules.context import RequestContext

__version__ = "0.1.0"

__all__ = [
    "AsyncBound",
    "AsyncLimiter",
    "AsyncReservation",
    "Bound",
    "ConfigError",
    "Decision",
    "HeadgateError",
    "Limit",
    "Limiter",
    "PressureEvent",
    "RateLimitExceeded",
    "RequestContext",
    "Reservation",
    "StoreClosed",
    "StoreError",
    "Verdict",
    "register_algorithm",
]
