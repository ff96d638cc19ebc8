"""Endpoints that are going to go: since when it is known, when they go, and where to read about it.

deprecated:
  - path: /ratelimiter/*
    since: 2026-01-01
    sunset: 2026-07-01
    link: https://example.org/moving-on

Whoever calls one is told by the headers Deprecation (RFC 9745) and Sunset (RFC 8594), and has half a year at least.
"""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import date

from headgate.config.observing import is_web_address
from headgate.config.section import names_of
from headgate.errors import ConfigError
from headgate.reading.fields import Fields, kind_of
from headgate.rules.pattern import EVERY, parse_pattern

__all__ = ["MONTHS", "Deprecation", "read_deprecated"]

MONTHS = 6
"""How long what is deprecated goes on at least."""
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True)
class Deprecation:
    """The endpoints of one pattern, deprecated."""

    path: str
    since: date
    sunset: date
    link: str | None = None


def read_deprecated(fields: Fields, name: str) -> tuple[Deprecation, ...]:
    """The list; mistakes are noted."""
    found: list[Deprecation] = []
    ways: dict[str, str] = {}
    for way, data in fields.items(name):
        inner = Fields(data, way, fields.problems, names_of(Deprecation))
        path = _path(inner, "path")
        since, sunset = _date(inner, "since"), _date(inner, "sunset")
        link = inner.text("link", most=2048)
        if link is not None and not is_web_address(link):
            inner.wrong("link", f"must be a URL such as https://example.org/moving-on, not {kind_of(link)}")
        if path is not None:
            first = ways.setdefault(parse_pattern(path).key, way)
            if first != way:
                inner.wrong("path", f"is the pattern of {first} too: keep one of the two")
        if since is not None and sunset is not None:
            earliest = _months_later(since, MONTHS)
            if earliest is None or sunset < earliest:
                wanted = "an earlier 'since'" if earliest is None else f"{earliest} or later, {MONTHS} months after it"
                inner.wrong("sunset", f"is too soon after 'since', {since}: write {wanted}")
            elif path is not None:
                found.append(Deprecation(path, since, sunset, link))
    return tuple(found)


def _path(fields: Fields, name: str) -> str | None:
    text: str | None = fields.text(name)
    if text is None:
        if fields.is_mapping and not fields.given(name):
            fields.wrong(name, "is missing: write a path or a pattern such as /ratelimiter/*")
        return None
    try:
        pattern = parse_pattern(text)
    except ConfigError as error:
        fields.wrong(name, str(error))
        return None
    if pattern.segments is None and pattern.key != EVERY:
        fields.wrong(name, f"must be a path of the service, which begins with '/', or '*', not {kind_of(text)}")
        return None
    return text


def _date(fields: Fields, name: str) -> date | None:
    value = fields.values.get(name)
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    if value is None:
        if fields.is_mapping:
            fields.wrong(name, "is missing: write a date such as 2026-01-31")
    else:
        fields.wrong(name, f"must be a date such as 2026-01-31, not {kind_of(value)}")
    return None


def _months_later(day: date, months: int) -> date | None:
    """The same day of a later month, or that month's last; None after the last year there is."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    if year > date.max.year:
        return None
    return date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))
