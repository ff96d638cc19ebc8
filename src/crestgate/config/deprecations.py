"""Deprecated endpoints: since when, until when, and a link to documentation.

deprecated:
  - path: /ratelimiter/*
    since: 2026-01-01
    sunset: 2026-07-01
    link: https://example.org/moving-on

Responses carry the headers Deprecation (RFC 9745) and Sunset (RFC 8594). The sunset is at least six months later.
"""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import date

from crestgate.config.observability import is_http_url
from crestgate.config.section import field_names
from crestgate.errors import ConfigError
from crestgate.loader.fields import Fields, describe
from crestgate.rules.matching.patterns import ANY_PATH, parse_pattern

__all__ = ["MIN_MONTHS", "Deprecation", "read_deprecated"]

MIN_MONTHS = 6
"""Minimum time from `since` to `sunset`."""
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True)
class Deprecation:
    """A pattern of deprecated endpoints."""

    path: str
    since: date
    sunset: date
    link: str | None = None


def read_deprecated(fields: Fields, name: str) -> tuple[Deprecation, ...]:
    """The list; errors are reported to `fields`."""
    deprecations: list[Deprecation] = []
    patterns: dict[str, str] = {}
    for entry, data in fields.items(name):
        inner = Fields(data, entry, fields.problems, field_names(Deprecation))
        path = _path(inner, "path")
        since, sunset = _date(inner, "since"), _date(inner, "sunset")
        link = inner.text("link", maximum=2048)
        if link is not None and not is_http_url(link):
            inner.report("link", f"must be a URL such as https://example.org/moving-on, not {describe(link)}")
        if path is not None:
            first = patterns.setdefault(parse_pattern(path).key, entry)
            if first != entry:
                inner.report("path", f"is the same pattern as {first}: keep one of the two")
        if since is not None and sunset is not None:
            earliest = _months_later(since, MIN_MONTHS)
            if earliest is None or sunset < earliest:
                remedy = (
                    "an earlier 'since'" if earliest is None else f"{earliest} or later, {MIN_MONTHS} months after it"
                )
                inner.report("sunset", f"is too soon after 'since', {since}: write {remedy}")
            elif path is not None:
                deprecations.append(Deprecation(path, since, sunset, link))
    return tuple(deprecations)


def _path(fields: Fields, name: str) -> str | None:
    text: str | None = fields.text(name)
    if text is None:
        if fields.is_mapping and not fields.has(name):
            fields.report(name, "is missing: write a path or a pattern such as /ratelimiter/*")
        return None
    try:
        pattern = parse_pattern(text)
    except ConfigError as error:
        fields.report(name, str(error))
        return None
    if pattern.segments is None and pattern.key != ANY_PATH:
        fields.report(name, f"must be a path of the service, which begins with '/', or '*', not {describe(text)}")
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
            fields.report(name, "is missing: write a date such as 2026-01-31")
    else:
        fields.report(name, f"must be a date such as 2026-01-31, not {describe(value)}")
    return None


def _months_later(day: date, months: int) -> date | None:
    """The same day of a later month, or that month's last; None beyond `date.max`."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    if year > date.max.year:
        return None
    return date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))
