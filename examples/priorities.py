"""Priorities: classes of requests that share one counter. Batch jobs stop at 80 %, critical requests at 100 %.

    pip install '.[config]'
    python examples/priorities.py

The first part needs no configuration; the rules of the second are priorities.yaml in this folder.
"""

from pathlib import Path

from crestgate import Limit, Limiter, RequestContext
from crestgate.testing import FakeClock

CONFIG = Path(__file__).with_name("priorities.yaml")

# Windows: the same period, another count.
BATCH = Limit(80, 60, algorithm="sliding_window_counter", name="model")
CRITICAL = Limit(100, 60, algorithm="sliding_window_counter", name="model")

# Buckets: the same rate, another burst.
BATCH_BUCKET = Limit(100, 60, burst=80, name="bucket")
CRITICAL_BUCKET = Limit(100, 60, name="bucket")


def admitted(limiter: Limiter, limit: Limit, requests: int) -> int:
    return sum(limiter.check("model:large", limit).allowed for _ in range(requests))


with Limiter("memory://", clock=FakeClock(1_700_000_000)) as limiter:
    for batch, critical in ((BATCH, CRITICAL), (BATCH_BUCKET, CRITICAL_BUCKET)):
        first, second = admitted(limiter, critical, 30), admitted(limiter, batch, 200)
        print(f"{batch.algorithm}: {first} critical, {second} batch")
        more, wait = admitted(limiter, critical, 200), limiter.peek("model:large", batch).retry_after
        print(f"  then {more} more critical; batch may retry in {wait} s")


def ask(limiter: Limiter, tier: str | None, cost: int) -> None:
    request = RequestContext(path="/models/large", tier=tier, attributes={"org": "acme"})
    decision = limiter.check_request(request, cost)
    left = ", ".join(f"{part.name} {part.remaining} of {part.limit}" for part in decision.parts)
    print(f"{tier or 'other'}: {'allowed' if decision else f'denied by {decision.name}'}; left: {left}")


with Limiter.from_config(CONFIG, environ={}, clock=FakeClock(1_700_000_000)) as limiter:
    ask(limiter, "batch", 40)
    ask(limiter, "batch", 1)  # the organisation has used 80 % of its burst
    ask(limiter, None, 10)  # the rest is there for others
    ask(limiter, None, 1)
