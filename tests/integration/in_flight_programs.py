"""A child program that holds slots of one in-flight limit from many tasks, and records when it surely held them."""

from __future__ import annotations

import asyncio
import random
import time
from struct import Struct

from crestgate import AsyncLimiter, RateLimitExceeded
from integration.child_main import send
from integration.kill_runs import BinaryJournal

__all__ = ["ENTERED", "LEFT", "LOST", "PROVED", "RECORD", "hold_from_tasks", "hold_slots"]

RECORD = Struct("<BxxxIqq")
"""What has happened, to which hold, when, and since when it is proved."""
ENTERED, PROVED, LEFT, LOST = range(4)
PATIENCE = 20.0


def hold_slots(url: str, limit: str, tasks: int, path: str, seed: int) -> None:
    """Hold slots until killed."""

    async def main() -> None:
        async with AsyncLimiter(url, on_store_error="closed") as limiter:
            await limiter.peek("key", limit)
            send("ready")
            await hold_from_tasks(limiter, limit, tasks, BinaryJournal(path, RECORD), seed)

    asyncio.run(main())


async def hold_from_tasks(
    limiter: AsyncLimiter, limit: str, tasks: int, journal: BinaryJournal, seed: int, seconds: float = 3600.0
) -> None:
    """Hold slots from so many tasks at once. One in four waits for its slot in the queue, the others ask again."""
    until = time.monotonic() + seconds
    ttl = float(limit.rpartition("ttl ")[2].rstrip("s"))

    async def task(number: int) -> None:
        rolls = random.Random(f"{seed} {number}")
        hold = number
        while time.monotonic() < until:
            hold += tasks
            timeout = PATIENCE if number % 4 == 0 else None
            asked = time.monotonic_ns()
            try:
                async with limiter.hold("key", limit, timeout=timeout) as held:
                    journal.write(ENTERED, hold, time.monotonic_ns(), asked)
                    if timeout is not None:  # it may have been granted long after it was asked for
                        await prove(held, hold)
                    if rolls.random() < 0.03:  # longer than the time to live: it is renewed in the background
                        await asyncio.sleep(1.5 * ttl)
                        await prove(held, hold)
                    else:
                        await asyncio.sleep(0.2 * rolls.random())
                    journal.write(LOST if held.lost else LEFT, hold, time.monotonic_ns(), 0)
                    if rolls.random() < 0.1:
                        raise ValueError("work that fails")
            except RateLimitExceeded:
                await asyncio.sleep(rolls.random())
            except (TimeoutError, ValueError):
                pass

    async def prove(held: object, hold: int) -> None:
        """A renewal that succeeds shows that the slot was never lost until now."""
        asked = time.monotonic_ns()
        await held.renew()  # type: ignore[attr-defined]
        if not held.lost:  # type: ignore[attr-defined]
            journal.write(PROVED, hold, time.monotonic_ns(), asked)

    await asyncio.gather(*map(task, range(tasks)))
