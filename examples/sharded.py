"""Several stores as one: each key lives in one of them, and taking one out moves only the keys that were its own.

    pip install '.[redis]'
    STORES="redis://one:6379/0 redis://two:6379/0 redis://three:6379/0" python examples/sharded.py

Without STORES, three databases of one server stand for three servers.
"""

import os

from crestgate import Limiter

STORES = os.environ.get("STORES", "redis://localhost:6379/0 redis://localhost:6379/1 redis://localhost:6379/2").split()
USERS = [f"user:{number}" for number in range(300)]

with Limiter(STORES) as limiter:
    print("allowed:", sum(limiter.check(user, "1/hour").allowed for user in USERS))
    print("again:", sum(limiter.check(user, "1/hour").allowed for user in USERS))

    with Limiter(STORES[:-1]) as fewer:  # without the last store: its users start anew elsewhere, the others stay
        moved = [user for user in USERS if fewer.peek(user, "1/hour").allowed]
        print(f"moved: {len(moved)} of {len(USERS)}")

    for user in USERS:
        limiter.reset(user, "1/hour")  # so that the next run prints the same
