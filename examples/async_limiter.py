"""The same limits under asyncio: every method is a coroutine, and `acquire` waits without blocking the loop."""

import asyncio
import time

from crestgate import AsyncLimiter


async def main() -> None:
    async with AsyncLimiter("memory://") as limiter:
        decisions = await asyncio.gather(*(limiter.check("user:42", "3/minute") for _ in range(5)))
        print("allowed:", sum(d.allowed for d in decisions), "of", len(decisions))

        started = time.monotonic()
        for _ in range(3):  # ten a second, one at a time: the second and the third wait for their turn
            await limiter.acquire("mailer", "10/second burst 1", timeout=2.0)
        print(f"three turns took about {time.monotonic() - started:.1f} s")

        try:
            await limiter.acquire("user:42", "3/minute", timeout=2.0)  # raised at once: the wait is known to be longer
        except TimeoutError as error:
            print(f"no turn in time: {error}")


asyncio.run(main())
