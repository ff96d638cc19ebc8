"""Moments as people and JSON write them: `2026-01-31T12:00:00Z`, or seconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headgate.reading.fields import Fields, kind_of

__all__ = ["moment_text", "read_moment"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_SECONDS = 253_402_300_799  # the last second of the year 9999


def moment_text(moment_us: int | None) -> str | None:
    """Microseconds since the epoch as RFC 3339 text.

    >>> moment_text(1_700_000_000_000_000), moment_text(1_700_000_000_500_000), moment_text(None)
    ('2023-11-14T22:13:20Z', '2023-11-14T22:13:20.500000Z', None)
    """
    if moment_us is None:
        return None
    return (_EPOCH + timedelta(microseconds=moment_us)).isoformat().replace("+00:00", "Z")


def read_moment(fields: Fields, name: str) -> int | None:
    """A field that is a moment, in microseconds since the epoch; None when it is absent, or wrong and noted."""
    value = fields.values.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            moment_us = (moment - _EPOCH) // timedelta(microseconds=1)
            if 0 <= moment_us < (_MOST_SECONDS + 1) * 1_000_000:  # what can be written again, in any time zone
                return moment_us
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_SECONDS:
        return round(value * 1_000_000)
    example = "'2026-01-31T12:00:00Z' (with its time zone) or seconds since 1970"
    fields.wrong(name, f"must be a moment such as {example}, not {kind_of(value)}")
    return None
