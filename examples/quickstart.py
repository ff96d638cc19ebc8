"""The shortest useful program: three requests a minute, and what a refusal tells you."""

from crestgate import Limiter

limiter = Limiter("memory://")
print([limiter.check("user:42", "3/minute").allowed for _ in range(4)])

decision = limiter.check("user:42", "3/minute")
if not decision:
    print(f"{decision.reason}: {decision.remaining} of {decision.limit} left, retry after {decision.retry_after:.0f} s")
