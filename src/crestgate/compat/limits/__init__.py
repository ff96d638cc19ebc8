"""The interface of the `limits` library on Crestgate's stores: change the import, and nothing else.

    from limits import parse                                →  from crestgate.compat.limits import parse
    from limits.storage import storage_from_string          →  from crestgate.compat.limits.storage import …
    from limits.strategies import MovingWindowRateLimiter   →  from crestgate.compat.limits.strategies import …

`limits` itself is not needed. docs/migrate-from-limits.md lists the differences.
"""

from crestgate.compat.limits import aio, storage, strategies
from crestgate.compat.limits.limits import (
    RateLimitItem,
    RateLimitItemPerDay,
    RateLimitItemPerHour,
    RateLimitItemPerMinute,
    RateLimitItemPerMonth,
    RateLimitItemPerSecond,
    RateLimitItemPerYear,
)
from crestgate.compat.limits.store_url import from_limits
from crestgate.compat.limits.util import WindowStats, parse, parse_many

__all__ = [
    "RateLimitItem",
    "RateLimitItemPerDay",
    "RateLimitItemPerHour",
    "RateLimitItemPerMinute",
    "RateLimitItemPerMonth",
    "RateLimitItemPerSecond",
    "RateLimitItemPerYear",
    "WindowStats",
    "aio",
    "from_limits",
    "parse",
    "parse_many",
    "storage",
    "strategies",
]
