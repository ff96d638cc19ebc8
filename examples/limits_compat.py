"""The interface of the limits library on Crestgate's stores: only the imports were changed.

pip install .
python examples/limits_compat.py
"""

import asyncio

from crestgate.compat.limits import parse
from crestgate.compat.limits.aio.strategies import MovingWindowRateLimiter as AsyncMovingWindowRateLimiter
from crestgate.compat.limits.storage import storage_from_string
from crestgate.compat.limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

storage = storage_from_string("memory://")
limiter = MovingWindowRateLimiter(storage)
three_a_minute = parse("3/minute")

print([limiter.hit(three_a_minute, "user", "42") for _ in range(4)])
print("left:", limiter.get_window_stats(three_a_minute, "user", "42").remaining)
limiter.clear(three_a_minute, "user", "42")
print("cleared:", limiter.test(three_a_minute, "user", "42"))

hourly = FixedWindowRateLimiter(storage)
ten_an_hour = parse("10 per hour")
print("eight:", hourly.hit(ten_an_hour, "upload", cost=8))
print("three more:", hourly.hit(ten_an_hour, "upload", cost=3))
print("left:", hourly.get_window_stats(ten_an_hour, "upload").remaining)  # a denied hit costs nothing


async def main() -> None:
    storage = storage_from_string("async+memory://")
    limiter = AsyncMovingWindowRateLimiter(storage)
    hits = await asyncio.gather(*[limiter.hit(three_a_minute, "user", "42") for _ in range(10)])
    print("allowed:", sum(hits), "of", len(hits))


asyncio.run(main())
