"""The same client, limited by Crestgate."""

from crestgate import Limiter

limiter = Limiter("memory://")
per_user = limiter.bind("3/hour using sliding_window_log")
of_plan = limiter.bind("2/hour using fixed_window; 4/day using fixed_window")


def call(user: str, cost: int = 1) -> bool:
    """Whether the API may be called for this user."""
    return per_user.check(f"calls:{user}", cost=cost).allowed


def left(user: str) -> int:
    return per_user.peek(f"calls:{user}").remaining


def wait(user: str) -> float:
    """The seconds until one more call may be possible."""
    return per_user.peek(f"calls:{user}").retry_after or 0.0


def refund(user: str) -> None:
    per_user.reset(f"calls:{user}")


def export(user: str) -> bool:
    """Whether a report may be exported: by all limits of the plan, in one step."""
    return of_plan.check(f"exports:{user}").allowed
