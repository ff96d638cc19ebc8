"""Headgate: rate limiting for Python services, exact in one process, across processes, and across machines."""

from headgate.core.algorithms import Verdict, register_algorithm
from headgate.core.decision import Decision
from headgate.core.limit import Limit
from headgate.core.pressure import PressureEvent
from headgate.engine.async_limiter import AsyncLimiter
from headgate.engine.limiter import Limiter
from headgate.errors import ConfigError, HeadgateError, RateLimitExceeded, StoreError
from headgate.rules.context import RequestContext

__version__ = "0.1.0"

__all__ = [
    "AsyncLimiter",
    "ConfigError",
    "Decision",
    "HeadgateError",
    "Limit",
    "Limiter",
    "PressureEvent",
    "RateLimitExceeded",
    "RequestContext",
    "StoreError",
    "Verdict",
    "register_algorithm",
]
