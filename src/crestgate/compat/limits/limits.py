"""Rate limit items: an amount per so many seconds, minutes and so on, as `limits` has them."""

from __future__ import annotations

from functools import total_ordering
from typing import ClassVar, NamedTuple

__all__ = [
    "GRANULARITIES",
    "TIME_TYPES",
    "Granularity",
    "RateLimitItem",
    "RateLimitItemPerDay",
    "RateLimitItemPerHour",
    "RateLimitItemPerMinute",
    "RateLimitItemPerMonth",
    "RateLimitItemPerSecond",
    "RateLimitItemPerYear",
]

DAY = 24 * 60 * 60


class Granularity(NamedTuple):
    """A unit of time."""

    seconds: int
    name: str


TIME_TYPES = {
    name: Granularity(seconds, name)
    for name, seconds in {
        "second": 1,
        "minute": 60,
        "hour": 60 * 60,
        "day": DAY,
        "month": 30 * DAY,
        "year": 360 * DAY,  # twelve months: in Crestgate's own notation a year has 365 days
    }.items()
}

GRANULARITIES: dict[str, type[RateLimitItem]] = {}
"""The class of each unit, by its name. Classes of your own are added when they are defined."""


@total_ordering
class RateLimitItem:
    """`amount` requests per `multiples` units; a subclass for each unit sets `GRANULARITY`.

    >>> RateLimitItemPerMinute(10, 2)
    10 per 2 minute
    >>> RateLimitItemPerMinute(10, 2).key_for("user", 42)
    'LIMITER/user/42/10/2/minute'
    """

    __slots__ = ("amount", "multiples", "namespace")

    GRANULARITY: ClassVar[Granularity]

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "GRANULARITY" in cls.__dict__:
            GRANULARITIES[cls.GRANULARITY.name] = cls

    def __init__(self, amount: int, multiples: int | None = 1, namespace: str = "LIMITER") -> None:
        self.amount = int(amount)
        self.multiples = int(multiples or 1)
        self.namespace = namespace

    @classmethod
    def check_granularity_string(cls, granularity_string: str) -> bool:
        """Whether this text names the unit, in singular or plural."""
        return granularity_string.lower() in (cls.GRANULARITY.name, f"{cls.GRANULARITY.name}s")

    def get_expiry(self) -> int:
        """The period, in seconds."""
        return self.GRANULARITY.seconds * self.multiples

    def key_for(self, *identifiers: bytes | str | float | None) -> str:
        """The key of a counter: namespace, identifiers and the limit, separated by slashes."""
        parts = [self.namespace]
        parts += [part.decode() if isinstance(part, bytes) else str(part) for part in identifiers]
        return "/".join([*parts, str(self.amount), str(self.multiples), self.GRANULARITY.name])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RateLimitItem):
            return NotImplemented
        return (self.amount, self.multiples, self.GRANULARITY) == (other.amount, other.multiples, other.GRANULARITY)

    def __lt__(self, other: RateLimitItem) -> bool:
        return self.GRANULARITY.seconds < other.GRANULARITY.seconds

    def __hash__(self) -> int:
        return hash((self.namespace, self.amount, self.multiples, self.GRANULARITY))

    def __repr__(self) -> str:
        return f"{self.amount} per {self.multiples} {self.GRANULARITY.name}"


class RateLimitItemPerSecond(RateLimitItem):
    """So many per second."""

    GRANULARITY = TIME_TYPES["second"]


class RateLimitItemPerMinute(RateLimitItem):
    """So many per minute."""

    GRANULARITY = TIME_TYPES["minute"]


class RateLimitItemPerHour(RateLimitItem):
    """So many per hour."""

    GRANULARITY = TIME_TYPES["hour"]


class RateLimitItemPerDay(RateLimitItem):
    """So many per day."""

    GRANULARITY = TIME_TYPES["day"]


class RateLimitItemPerMonth(RateLimitItem):
    """So many per 30 days."""

    GRANULARITY = TIME_TYPES["month"]


class RateLimitItemPerYear(RateLimitItem):
    """So many per 360 days."""

    GRANULARITY = TIME_TYPES["year"]
