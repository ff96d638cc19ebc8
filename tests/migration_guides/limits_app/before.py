"""A client of a paid API, limited by limits."""

import time

from limits import parse, parse_many
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

storage = MemoryStorage()
moving = MovingWindowRateLimiter(storage)
fixed = FixedWindowRateLimiter(storage)
per_user = parse("3/hour")
of_plan = parse_many("2/hour; 4/day")


def call(user: str, cost: int = 1) -> bool:
    """Whether the API may be called for this user."""
    return bool(moving.hit(per_user, "calls", user, cost=cost))


def left(user: str) -> int:
    return int(moving.get_window_stats(per_user, "calls", user).remaining)


def wait(user: str) -> float:
    """The seconds until one more call may be possible."""
    return max(float(moving.get_window_stats(per_user, "calls", user).reset_time) - time.time(), 0.0)


def refund(user: str) -> None:
    moving.clear(per_user, "calls", user)


def export(user: str) -> bool:
    """Whether a report may be exported: by all limits of the plan."""
    return all(fixed.test(limit, "exports", user) for limit in of_plan) and all(
        fixed.hit(limit, "exports", user) for limit in of_plan
    )
