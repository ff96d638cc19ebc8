"""A hundred tasks at once against one Redis: their checks leave together, in a few calls instead of a hundred.

    pip install '.[redis]'
    HEADGATE_STORE=redis://localhost:6379/0 python examples/async_redis.py

A task may also be cancelled while it waits: what was decided for it is given back.
"""

import asyncio
import os

from headgate import AsyncLimiter

STORE = os.environ.get("HEADGATE_STORE", "redis://localhost:6379/0")


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
