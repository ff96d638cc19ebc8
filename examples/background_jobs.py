"""Limits in background jobs: a task of a queue that is postponed, and a job that runs once an hour."""

from collections.abc import Callable

from crestgate import Limiter, RateLimitExceeded
from crestgate.testing import FakeClock

clock = FakeClock(1_700_000_000)  # virtual time, so that the output is always the same; leave it out in your program
limiter = Limiter("memory://", clock=clock)  # workers share a store: shared://jobs on one machine, redis://… on several

PARTNER = "2/minute burst 1"


class Retry(Exception):  # noqa: N818 - as queues call it
    """Stands for what a queue offers to run a task again later."""

    def __init__(self, countdown: float) -> None:
        self.countdown = countdown


def send_mail(address: str) -> str:
    """A task that gives its worker free and comes back when the limit allows it."""
    decision = limiter.check("partner:mail", PARTNER)
    if not decision.allowed:
        if decision.retry_after is None:
            raise RateLimitExceeded(decision)  # no wait would help: the cost is more than the limit
        raise Retry(countdown=decision.retry_after)
    return f"sent to {address}"


def hourly(job: Callable[[], str]) -> str:
    """Started by cron on every machine; only one of them runs in each hour."""
    if not limiter.check("job:cleanup", "1/hour using fixed_window"):
        return "another machine has run it"
    return job()


print(send_mail("alice@example.com"))
try:
    send_mail("bob@example.com")
except Retry as retry:
    print(f"again in {retry.countdown} s")
    clock.advance(retry.countdown)  # the queue's business
    print(send_mail("bob@example.com"))

print([hourly(lambda: "cleaned") for _ in range(3)])
