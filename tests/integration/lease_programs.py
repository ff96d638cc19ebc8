"""A child program that checks leased limits from several tasks, and records what was admitted, and when."""

from __future__ import annotations

import asyncio
import random
import time
from struct import Struct

from crestgate import AsyncLimiter, Limit
from integration.child_main import send
from integration.kill_runs import BinaryJournal

__all__ = ["BUCKET", "RECORD", "WINDOW", "check_leased"]

RECORD = Struct("<qqB")
"""When the check began and ended, and whether it was under the bucket."""
WINDOW = Limit(300, 2, algorithm="fixed_window", name="window", lease=True)
BUCKET = Limit(100, 1, burst=120, name="bucket", lease=True)
TASKS = 4


def check_leased(url: str, path: str, seed: int) -> None:
    """Check until killed. Together the processes ask for more than the limits admit."""
    journal = BinaryJournal(path, RECORD)

    async def main() -> None:
        async with AsyncLimiter(url, on_store_error="closed") as limiter:
            await limiter.peek("key", WINDOW)
            send("ready")
            await asyncio.gather(*[check(limiter, random.Random(f"{seed} {number}")) for number in range(TASKS)])

    async def check(limiter: AsyncLimiter, rolls: random.Random) -> None:
        while True:
            await asyncio.sleep(0.02 * rolls.random())
            for limit in (WINDOW, BUCKET):
                began = time.monotonic_ns()
                if (await limiter.check("key", limit)).allowed:
                    journal.write(began, time.monotonic_ns(), limit is BUCKET)

    asyncio.run(main())
