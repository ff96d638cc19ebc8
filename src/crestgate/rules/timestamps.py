"""Timestamps in JSON and YAML: `2026-01-31T12:00:00Z`, or seconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from crestgate.loader.fields import Fields, describe

__all__ = ["format_timestamp", "read_timestamp"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_SECONDS = 253_402_300_799  # the last second of the year 9999


def format_timestamp(timestamp_us: int | None) -> str | None:
    """Microseconds since the epoch as RFC 3339 text.

    >>> format_timestamp(1_700_000_000_000_000), format_timestamp(1_700_000_000_500_000), format_timestamp(None)
    ('2023-11-14T22:13:20Z', '2023-11-14T22:13:20.500000Z', None)
    """
    if timestamp_us is None:
        return None
    return (_EPOCH + timedelta(microseconds=timestamp_us)).isoformat().replace("+00:00", "Z")


def read_timestamp(fields: Fields, name: str) -> int | None:
    """A timestamp field, in microseconds since the epoch; None if it is absent, or invalid and reported."""
    value = fields.values.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            parsed = None
        if parsed is not None and parsed.tzinfo is not None:
            timestamp_us = (parsed - _EPOCH) // timedelta(microseconds=1)
            if 0 <= timestamp_us < (_MAX_SECONDS + 1) * 1_000_000:  # what can be formatted again, in any time zone
                return timestamp_us
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MAX_SECONDS:
        return round(value * 1_000_000)
    example = "'2026-01-31T12:00:00Z' (with its time zone) or seconds since 1970"
    fields.report(name, f"must be a timestamp such as {example}, not {describe(value)}")
    return None
