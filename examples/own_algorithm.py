"""An algorithm of your own: a pure step over three whole numbers, which works in chains, and in every store but Redis.

`cooldown`: so many attempts, and each attempt starts the wait of one whole period anew. Good for passwords.
"""

from crestgate import Limit, Limiter, Verdict, register_algorithm
from crestgate.testing import FakeClock

State = tuple[int, int, int]  # yours to define, but the first must be the time of the last change, in microseconds


def cooldown(limit: Limit, state: State | None, now: int, cost: int) -> tuple[State | None, Verdict]:
    last, used, _ = state or (now, 0, 0)
    wait = max(last + limit.period_us - now, 0)
    if wait == 0:
        used = 0  # nobody tried for a whole period
    if used + cost > limit.count:
        return None, Verdict(allowed=False, remaining=limit.count - used, retry_us=wait, reset_us=wait)
    if cost:
        used, wait = used + cost, limit.period_us
    return (now, used, 0), Verdict(True, limit.count - used, retry_us=0, reset_us=wait if used else 0)


register_algorithm("cooldown", cooldown)

clock = FakeClock(1_700_000_000)
limiter = Limiter("memory://", clock=clock)
for seconds in (0, 200, 200, 200, 100):
    clock.advance(seconds)
    decision = limiter.check("login:42", "3/5 minutes using cooldown")
    print(f"+{seconds:3} s  allowed={decision.allowed}  left={decision.remaining}  retry_after={decision.retry_after}")
