"""Child programs that fork while an AsyncLimiter is in use. (Those of the shared store are in fork_programs.py.)"""

from __future__ import annotations

import asyncio

from crestgate import AsyncLimiter
from integration.child_main import send
from integration.fork_programs import Fork

__all__ = ["fork_between_loops", "fork_in_a_loop"]


async def admitted(limiter: AsyncLimiter, limit: str, checks: int) -> int:
    """How many of so many concurrent checks are admitted; -1 if the store failed at one of them."""
    decisions = await asyncio.gather(*(limiter.check("key", limit) for _ in range(checks)))
    reasons = [decision.reason for decision in decisions]
    return reasons.count("ok") if set(reasons) <= {"ok", "limited"} else -1


def fork_between_loops(url: str, limit: str, checks: int) -> None:
    """The loop has ended when the process forks; parent and child each start another."""
    limiter = AsyncLimiter(url, on_store_error="closed")
    counts = [asyncio.run(admitted(limiter, limit, checks))]
    child = Fork(lambda: asyncio.run(admitted(limiter, limit, checks)))
    counts.append(asyncio.run(admitted(limiter, limit, checks)))
    send([*counts, child.result()])


def fork_in_a_loop(url: str, limit: str, checks: int) -> None:
    """The loop continues in the parent, with its connections; the child starts another."""

    async def work() -> list[int]:
        async with AsyncLimiter(url, on_store_error="closed") as limiter:
            counts = [await admitted(limiter, limit, checks)]
            pending = [asyncio.create_task(admitted(limiter, limit, checks)) for _ in range(5)]
            await asyncio.sleep(0)
            child = Fork(lambda: asyncio.run(admitted(limiter, limit, checks)))
            counts += await asyncio.gather(*pending)
            return [*counts, child.result(), await admitted(limiter, limit, checks)]

    send(asyncio.run(work()))
