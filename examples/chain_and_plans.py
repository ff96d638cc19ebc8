"""Plans give limits a name; a chain is several limits that one request must pass together, all or nothing."""

from crestgate import Limiter
from crestgate.testing import FakeClock

PLANS = {
    "gold": "10/second burst 20",
    "daily": "50/day using fixed_window",
    "free": ["1/second burst 5", "40/hour"],  # a plan may hold several limits
}

clock = FakeClock(1_700_000_000)  # virtual time, so that the output is always the same
limiter = Limiter("memory://", plans=PLANS, clock=clock)

d = limiter.check("user:42", ["gold", "daily"], cost=3)  # a chain: all or nothing
print(f"allowed={d.allowed} by {d.name}, {d.remaining} left")
for part in d.parts:
    print(f"  {part.name}: {part.remaining} of {part.limit} left")

# 17 are left on the first limit and 47 on the second. A cost of 20 is denied by the first, and charges neither.
d = limiter.check("user:42", ["gold", "daily"], cost=20)
print(f"allowed={d.allowed} by {d.name}, retry after {d.retry_after} s")
print("  untouched:", [part.remaining for part in limiter.peek("user:42", ["gold", "daily"]).parts])

# A plan with several limits has one counter for each, named by position.
print([part.name for part in limiter.check("user:7", "free").parts])
