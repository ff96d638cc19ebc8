"""A hundred concurrent tasks on one Redis: their checks are sent in a few batches instead of a hundred calls.

    pip install '.[redis]'
    CRESTGATE_STORE=redis://localhost:6379/0 python examples/async_redis.py

If a task is cancelled while it waits, its charge is refunded.
"""

import asyncio
import os

from crestgate import AsyncLimiter

STORE = os.environ.get("CRESTGATE_STORE", "redis://localhost:6379/0")


async def main() -> None:
    async with AsyncLimiter(STORE) as limiter:  # connects here: StoreError if the server is away
        decisions = await asyncio.gather(*(limiter.check("api", "50/hour") for _ in range(100)))
        print("allowed:", sum(d.allowed for d in decisions), "of", len(decisions))
        await limiter.reset("api", "50/hour")  # so that the next run prints the same


async def connect_by_hand() -> None:
    limiter = AsyncLimiter(STORE)  # nothing is connected yet: there may be no event loop where this is written
    await limiter.connect()  # where the application starts: StoreError if the server is away
    print("left:", (await limiter.peek("api", "50/hour")).remaining)
    await limiter.aclose()  # where it stops


asyncio.run(main())
asyncio.run(connect_by_hand())
