"""A program whose counters, plans and rules are those of a Crestgate service. Start one first: `crestgate serve`.

    CRESTGATE_PLANS__GOLD="3/minute using fixed_window" crestgate serve
    python examples/service_store.py

Where checks need a key it stands in the URL: crestgate://:cg_…@host:8080.
"""

import asyncio
import os

from crestgate import AsyncLimiter, ConfigError, Limiter, RequestContext

SERVICE = os.environ.get("CRESTGATE_STORE", "crestgate://127.0.0.1:8080")


def in_threads() -> None:
    with Limiter(SERVICE, on_store_error="closed") as limiter:
        own = limiter.check("user:42", "5/minute")  # a limit of this program, counted in the service
        print(f"{own.name}: {own.remaining} of {own.limit} left")
        chain = limiter.check("user:42", ["gold", "5/minute"], cost=2)  # and, all or nothing, a plan of the service
        print(", ".join(f"{part.name}: {part.remaining} of {part.limit}" for part in chain.parts))
        request = limiter.check_request(RequestContext(user="42", path="/orders", method="POST"))
        print(f"by the rules of the service: {request.reason}")
        try:
            limiter.check("user:42", "golf")
        except ConfigError as error:
            print(str(error).partition(": ")[2])


async def in_tasks() -> None:
    async with AsyncLimiter(SERVICE) as limiter:
        decisions = await asyncio.gather(*[limiter.check("job:7", "100/hour") for _ in range(1000)])
        counted = [decision for decision in decisions if decision.reason != "fail_open"]
        print(f"{sum(decision.allowed for decision in counted)} of {len(counted)} allowed, in a few calls")


if __name__ == "__main__":
    in_threads()
    asyncio.run(in_tasks())
