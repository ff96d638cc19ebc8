"""A sender of messages, limited by throttled-py."""

from throttled import RateLimiterType, Throttled, exceptions, rate_limiter, store

counters = store.MemoryStore()
per_user = Throttled(
    using=RateLimiterType.GCRA.value,
    quota=rate_limiter.per_hour(3, burst=3),
    store=counters,
)


@Throttled(key="reports", using=RateLimiterType.TOKEN_BUCKET.value, quota="1/h", store=counters)
def report() -> str:
    return "sales"


def send(user: str, pages: int = 1) -> tuple[bool, int]:
    """Whether it was sent, and how many pages are left."""
    result = per_user.limit(user, cost=pages)
    return not result.limited, result.state.remaining


def left(user: str) -> int:
    return int(per_user.peek(user).remaining)


def wait(user: str) -> float:
    """The seconds until one more page may be sent."""
    return float(per_user.limit(user).state.retry_after)


def reported() -> bool:
    try:
        report()
    except exceptions.LimitedError as error:
        return error.rate_limit_result is None
    return True
