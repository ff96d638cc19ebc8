"""Limits across machines: whoever names the same Redis shares the counters.

    pip install '.[redis]'
    CRESTGATE_STORE=redis://localhost:6379/0 python examples/redis_limits.py

Any other store URL will do as well: redis+sentinel://, redis+cluster://, mysql://, postgresql://, ...
"""

import os

from crestgate import Limiter

STORE = os.environ.get("CRESTGATE_STORE", "redis://localhost:6379/0")
limiter = Limiter(STORE)
print([limiter.check("user:42", "3/minute").allowed for _ in range(4)])

# Another program, perhaps on another machine: it finds what the first one has used.
elsewhere = Limiter(STORE)
decision = elsewhere.check("user:42", "3/minute")
print(f"elsewhere: {decision.reason}, {decision.remaining} of {decision.limit} left")

limiter.reset("user:42", "3/minute")  # so that the next run prints the same
limiter.close()
elsewhere.close()
