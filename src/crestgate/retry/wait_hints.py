"""Wait hints: how long a response asks its caller to wait, in the headers that servers use for it.

    Retry-After: 17                                   seconds (some servers write 1.5: it is what they mean)
    Retry-After: Fri, 31 Dec 2027 23:59:59 GMT        or a date; one that is past is 0
    RateLimit: "per-user";r=0;t=17, "per-day";r=9;t=60  where nothing remains (r=0), the longest t
    RateLimit-Remaining: 0 and RateLimit-Reset: 17      the same in older drafts
    X-RateLimit-Remaining: 0 and X-RateLimit-Reset      the same by custom: seconds, or a moment since the epoch

The first that says something counts: whoever sends Retry-After beside the others means it (draft-ietf-httpapi-
ratelimit-headers-11). What is malformed says nothing. Dates are counted from the `Date` of the response where it has
one, since the server's clock is the one they were written by; from `now` otherwise.

A number is believed up to `MAX_SUGGESTED_SECONDS`. A reset of a thousand million and more is a moment, a smaller one
seconds; what would be neither in any reasonable server (thirty years, or milliseconds) is not believed at all.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from crestgate.retry.dates import read_date
from crestgate.retry.structured_fields import read_list

__all__ = ["MAX_SUGGESTED_SECONDS", "Headers", "exhausted_wait", "suggested_wait"]

MAX_SUGGESTED_SECONDS: Final = 366 * 86400.0
"""Seconds: whoever is told to wait for longer is told this."""
_SECONDS = re.compile(r"[0-9]{1,400}(?:\.[0-9]{1,400})?")
_WHOLE = re.compile(r"[0-9]{1,11}")
_MIN_EPOCH_SECONDS: Final = 1_000_000_000
_MAX_DELTA_SECONDS: Final = 100_000_000
_COUNTED: Final = (("ratelimit-remaining", "ratelimit-reset"), ("x-ratelimit-remaining", "x-ratelimit-reset"))


class Headers(Protocol):
    """The headers of a response, found by name whatever the case of its letters. Those of httpx and requests are."""

    def get(self, name: str, /) -> str | None: ...


def suggested_wait(headers: Headers, now: float) -> float | None:
    """The seconds that a refused request is told to wait; None when it is told nothing. `now` is the time of day.

    >>> suggested_wait({"retry-after": "17"}, 0.0), suggested_wait({"ratelimit": '"per-user";r=0;t=5'}, 0.0)
    (17.0, 5.0)
    """
    wait = _retry_after(headers, now)
    return exhausted_wait(headers, now) if wait is None else wait


def exhausted_wait(headers: Headers, now: float) -> float | None:
    """The seconds until there is something left again, when the response says that there is nothing; None otherwise.

    A response may say so whether it was a refusal or not: the last request of a quota is carried out.
    """
    field = headers.get("ratelimit")
    if field is not None:
        waits = [item.get("t") for item in read_list(field.strip()) or () if item.get("r") == 0]
        longest = max((wait for wait in waits if wait is not None), default=-1)
        if longest >= 0:
            return _clamped(float(longest))
    for remaining, reset in _COUNTED:
        if _whole(headers.get(remaining)) == 0:
            wait = _until(_whole(headers.get(reset)), headers, now)
            if wait is not None:
                return wait
    return None


def _retry_after(headers: Headers, now: float) -> float | None:
    text = (headers.get("retry-after") or "").strip()
    if _SECONDS.fullmatch(text):
        return _clamped(float(text))
    moment = read_date(text, now)
    return None if moment is None else _clamped(moment - _sent_at(headers, now))


def _until(reset: int | None, headers: Headers, now: float) -> float | None:
    """The seconds to a reset, which is either that or a moment."""
    if reset is None:
        return None
    if reset < _MAX_DELTA_SECONDS:
        return _clamped(float(reset))
    return _clamped(reset - _sent_at(headers, now)) if reset >= _MIN_EPOCH_SECONDS else None


def _sent_at(headers: Headers, now: float) -> float:
    """When the response was written."""
    moment = read_date((headers.get("date") or "").strip(), now)
    return now if moment is None else moment


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and _WHOLE.fullmatch(text := text.strip()) else None


def _clamped(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_SUGGESTED_SECONDS)
