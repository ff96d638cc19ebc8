"""A cost that is known only afterwards: reserve an estimate, settle what was really used."""

from collections.abc import Generator

from crestgate import Limiter, RateLimitExceeded
from crestgate.testing import FakeClock

LIMIT = "1000/minute using fixed_window"  # a budget: what is given back counts again until the minute ends
limiter = Limiter("memory://", clock=FakeClock(1_700_000_000))  # virtual time, so that the output is always the same


def ask_model(prompt: str) -> int:
    """Stands for a call to a language model; says how many tokens it used."""
    if not prompt:
        raise ValueError("nothing to ask")
    return 100 * len(prompt.split())


def left() -> int:
    return limiter.peek("user:42", LIMIT).remaining


with limiter.reserve("user:42", LIMIT, cost=800) as r:
    used = ask_model("why is the sky blue")
    r.settle(used)  # 500 of 800: the other 300 go back
print(f"used {used}, {left()} left")

with limiter.reserve("user:42", LIMIT, cost=500) as r:
    r.settle(900)  # 400 more than reserved: charged all the same, and now there is a debt
print(f"{left()} left")

try:
    limiter.reserve("user:42", LIMIT, cost=100)
except RateLimitExceeded as error:
    print(f"denied, retry after {error.decision.retry_after} s")

limiter.reset("user:42", LIMIT)
try:
    with limiter.reserve("user:42", LIMIT, cost=800):
        ask_model("")  # an exception gives the whole reservation back
except ValueError:
    print(f"failed, {left()} left")

with limiter.reserve("user:42", LIMIT, cost=800):
    pass  # nothing settled: the reservation is kept
print(f"not settled, {left()} left")


def stream(user: str) -> Generator[str, None, None]:
    used = 0
    with limiter.reserve(user, LIMIT, cost=800) as r:
        try:
            for word in ("because", "of", "Rayleigh", "scattering"):
                used += 100
                yield word
        finally:
            r.settle(used)  # also when the client hangs up


limiter.reset("user:42", LIMIT)
response = stream("user:42")
print(next(response), next(response))
response.close()  # as a server does when the client hangs up
print(f"hung up, {left()} left")
