"""Guard a function: every call is checked first, and a call that is denied raises RateLimitExceeded."""

import asyncio

from headgate import Limiter, RateLimitExceeded

limiter = Limiter("memory://", plans={"gold": "2/minute"})


@limiter.limit("gold", key="user:{user_id}")
def profile(user_id: int) -> str:
    return f"profile of {user_id}"


@limiter.limit("1/minute", key=lambda name: f"report:{name}")
async def report(name: str) -> str:
    return f"report {name}"


for user_id in (42, 42, 42, 7):
    try:
        print(profile(user_id))
    except RateLimitExceeded as error:
        print(f"denied: {error.decision.name}, {error.decision.remaining} left")

print(asyncio.run(report("sales")))
try:
    asyncio.run(report("sales"))
except RateLimitExceeded as error:
    print(f"denied: {error.decision.name}")
