"""The same sender, limited by Crestgate."""

from crestgate import Limiter, RateLimitExceeded

limiter = Limiter("memory://")
per_user = limiter.bind("3/hour burst 3 using gcra")


@limiter.limit("1/hour", key="reports")
def report() -> str:
    return "sales"


def send(user: str, pages: int = 1) -> tuple[bool, int]:
    """Whether it was sent, and how many pages are left."""
    decision = per_user.check(user, cost=pages)
    return decision.allowed, decision.remaining


def left(user: str) -> int:
    return per_user.peek(user).remaining


def wait(user: str) -> float:
    """The seconds until one more page may be sent."""
    return per_user.check(user).retry_after or 0.0


def reported() -> bool:
    try:
        report()
    except RateLimitExceeded as error:
        return error.decision.allowed
    return True
