"""Limit a function: every call is checked first, and a denied call raises RateLimitExceeded."""

import asyncio

from crestgate import Limiter, RateLimitExceeded

limiter = Limiter("memory://", plans={"gold": "2/minute"})


@limiter.limit("gold", key="user:{user_id}")
def profile(user_id: int) -> str:
    return f"profile of {user_id}"


@limiter.limit("1/minute", key=lambda name: f"report:{name}")
async def report(name: str) -> str:
    return f"report {name}"


@limiter.limit("2/minute", key="log-in:{name}", when=lambda user: user is None)  # only what fails counts
def log_in(name: str, password: str) -> str | None:
    return name if password == "secret" else None


QUOTAS = {"free": "100/day", "gold": "1000/day", "staff": None}


@limiter.limit(
    lambda tier, *_: QUOTAS[tier],  # None: not limited
    key="tier:{tier}",
    cost=lambda _, text: len(text),
    exempt=lambda _, text: not text,
)
def translate(tier: str, text: str) -> str:
    return f"{tier}: {text.swapcase()}"


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

for password in ("secret", "secret", "secret", "guess", "guess", "secret"):
    try:
        print(log_in("bob", password))
    except RateLimitExceeded as error:
        print(f"denied: {error.decision.name}")

for tier, text in (("free", "a" * 60), ("free", "b" * 60), ("gold", "c" * 60), ("staff", "d" * 6000)):
    try:
        print(translate(tier, text)[:9])
    except RateLimitExceeded as error:
        print(f"{tier}: denied, {error.decision.remaining} letters left")
