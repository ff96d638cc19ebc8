"""Limits, durations and numbers in words, as the pages show them."""

from __future__ import annotations

from datetime import UTC, datetime

from crestgate.core.calendar_units import DEFAULT_ZONE
from crestgate.rules.rule import Rule

__all__ = ["ago", "duration", "limit_in_words", "local_time", "number", "rate", "scope_in_words"]

UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
BURSTS = ("token_bucket", "leaky_bucket", "gcra")


def limit_in_words(
    limit: int, seconds: float, burst: int | None, algorithm: str, calendar: str | None = None, zone: str | None = None
) -> str:
    """A limit as a person would say it.

    >>> limit_in_words(100, 60, 20, "token_bucket")
    '100 requests per minute, bursts up to 20'
    >>> limit_in_words(1, 90, None, "fixed_window"), limit_in_words(0, 60, None, "gcra")
    ('1 request per 90 seconds', 'no requests at all')
    >>> limit_in_words(1000, 0, None, "fixed_window", "month", "Europe/Berlin")
    '1,000 requests per calendar month in Europe/Berlin'
    """
    if limit == 0:
        return "no requests at all"
    period = _period(seconds) if calendar is None else f"calendar {calendar} in {zone or DEFAULT_ZONE}"
    text = f"{limit:,} request{'' if limit == 1 else 's'} per {period}"
    if algorithm in BURSTS and burst is not None:
        text += f", bursts up to {burst:,}"
    return text


def scope_in_words(rule: Rule) -> str:
    """What a rule is for.

    >>> scope_in_words(Rule("r", "r", "user", 1, 60, endpoint_pattern="/orders/*", method="POST", tier="gold"))
    'each user of tier gold, POST /orders/*'
    """
    if rule.dimension == "global":
        who = "all requests together"
    elif rule.dimension == "api":
        who = "each endpoint, whoever calls it"
    else:
        named = zip(rule.dimensions, rule.identifiers, strict=True)
        who = " and ".join([f"each {name}" if value == "*" else f"{name} {value}" for name, value in named])
    if rule.tier != "*":
        who += f" of tier {rule.tier}"
    where = " ".join(part for part in (rule.method, rule.endpoint_pattern) if part != "*")
    return f"{who}, {where}" if where else f"{who}, every request"


def duration(seconds: float) -> str:
    """A duration in its two largest units.

    >>> duration(0.4), duration(90), duration(7_260), duration(200_000)
    ('0.4 s', '1 min 30 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    left = int(seconds)
    parts = []
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2]) or "0 s"


def ago(at_us: int, now_us: int) -> str:
    """How long ago something was.

    >>> ago(0, 90_000_000), ago(10, 0)
    ('1 min 30 s ago', 'now')
    """
    seconds = (now_us - at_us) // 1_000_000
    return f"{duration(seconds)} ago" if seconds >= 1 else "now"


def local_time(at_us: int | None) -> str:
    """A moment in UTC, to the second.

    >>> local_time(1_700_000_000_000_000), local_time(None)
    ('2023-11-14 22:13:20 UTC', '')
    """
    return "" if at_us is None else f"{datetime.fromtimestamp(at_us / 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def number(value: float) -> str:
    """A whole number with separators."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """A number per second.

    >>> rate(0), rate(0.25), rate(12.34), rate(4321.9)
    ('0', '0.2', '12.3', '4,322')
    """
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def _period(seconds: float) -> str:
    for size, name in UNITS:
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return name if count == 1 else f"{count} {name}s"
    return f"{seconds:g} seconds"
