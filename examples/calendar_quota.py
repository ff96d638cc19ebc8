"""Quotas of the calendar: a budget per month, and a daily limit that starts again at midnight in Berlin."""

from crestgate import Limiter
from crestgate.testing import FakeClock

clock = FakeClock(1_774_778_400)  # 2026-03-29, 12:00 in Berlin; virtual, so that it is always the same day
plans = {"budget": "1000/calendar month in Europe/Berlin", "daily": "50/calendar day in Europe/Berlin"}

with Limiter("memory://", plans=plans, clock=clock) as limiter:
    decision = limiter.check("acme", ["budget", "daily"], cost=50)
    for part in decision.parts:
        print(f"{part.name}: {part.remaining} of {part.limit} left, for {part.reset_after / 3600:g} hours")
    denied = limiter.check("acme", ["budget", "daily"])
    wait = denied.retry_after or 0.0
    print(f"denied by {denied.name}, retry after {wait / 3600:g} hours")
    clock.advance(wait)
    print(f"after midnight: {limiter.check('acme', ['budget', 'daily']).allowed}")
