"""Programs that fork while an AsyncLimiter is in use. (Those of the shared store are in forks.py.)"""

from __future__ import annotations

import asyncio

from crestgate import AsyncLimiter
from integration.child_main import send
from integration.fork_programs import Fork

__all__ = ["fork_between_loops", "fork_in_a_loop"]


async def admitted(limiter: AsyncLimiter, limit: str, checks: int) -> int:
    """How many of so many checks at once are admitted; -1 when the store failed at one of them."""
    decisions = await asyncio.gather(*(limiter.check("key", limit) for _ in range(checks)))
    reasons = [decision.reason for decision in decisions]
    return reasons.count("ok") if set(reasons) <= {"ok", "limited"} else -1


def fork_between_loops(url: str, limit: str, checks: int) -> None:
    """A loop is over when the process forks; parent and child begin another one each."""
    limiter = AsyncLimiter(url, on_store_error="closed")
    counts = [asyncio.run(admitted(limiter, limit, checks))]
    child = Fork(lambda: asyncio.run(admitted(limiter, limit, checks)))
    counts.append(asyncio.run(admitted(limiter, limit, checks)))
    send([*counts, child.result()])


def fork_in_a_loop(url: str, limit: str, checks: int) -> None:
    """The loop goes on in the parent, with its connections; the child begins another one."""

    async def work() -> list[int]:
        async with AsyncLimiter(url, on_store_error="closed") as limiter:
            counts = [await admitted(limiter, limit, checks)]
            under_way = [asyncio.create_task(admitted(limiter, limit, checks)) for _ in range(5)]
            await asyncio.sleep(0)
            child = Fork(lambda: asyncio.run(admitted(limiter, limit, checks)))
            counts += await asyncio.gather(*under_way)
            return [*counts, child.result(), await admitted(limiter, limit, checks)]

    send(asyncio.run(work()))
