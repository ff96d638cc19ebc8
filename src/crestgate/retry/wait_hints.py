"""Wait hints: how long the headers of a response ask the client to wait.

    Retry-After: 17                                   seconds (also 1.5, which some servers send)
    Retry-After: Fri, 31 Dec 2027 23:59:59 GMT        or a date; a past one is 0
    RateLimit: "per-user";r=0;t=17, "per-day";r=9;t=60  of the items with nothing remaining (r=0), the longest t
    RateLimit-Remaining: 0 and RateLimit-Reset: 17      the same in older drafts
    X-RateLimit-Remaining: 0 and X-RateLimit-Reset      the same by convention: seconds, or a Unix time

The first one that is present counts: Retry-After takes precedence (draft-ietf-httpapi-ratelimit-headers-11). Malformed
headers are ignored. Dates are relative to the `Date` of the response, which is by the server's clock, or to `now` if
there is none.

Waits are capped at `MAX_SUGGESTED_SECONDS`. A reset of 1,000,000,000 or more is a Unix time, one below 100,000,000 is
seconds; one in between is neither in any reasonable server, and is ignored.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from crestgate.retry.dates import read_date
from crestgate.retry.structured_fields import read_list

__all__ = ["MAX_SUGGESTED_SECONDS", "ResponseHeaders", "exhausted_wait", "suggested_wait"]

MAX_SUGGESTED_SECONDS: Final = 366 * 86400.0
"""Longer waits are capped at this."""
_SECONDS = re.compile(r"[0-9]{1,400}(?:\.[0-9]{1,400})?")
_INTEGER = re.compile(r"[0-9]{1,11}")
_MIN_EPOCH_SECONDS: Final = 1_000_000_000
_MAX_DELTA_SECONDS: Final = 100_000_000
_HEADER_PAIRS: Final = (
    ("ratelimit-remaining", "ratelimit-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
)


class ResponseHeaders(Protocol):
    """Response headers with case-insensitive names, such as those of httpx and requests."""

    def get(self, name: str, /) -> str | None: ...


def suggested_wait(headers: ResponseHeaders, now: float) -> float | None:
    """Seconds that the response to a rejected request asks to wait; None if it has no hint. `now` is Unix time.

    >>> suggested_wait({"retry-after": "17"}, 0.0), suggested_wait({"ratelimit": '"per-user";r=0;t=5'}, 0.0)
    (17.0, 5.0)
    """
    wait = _retry_after(headers, now)
    return exhausted_wait(headers, now) if wait is None else wait


def exhausted_wait(headers: ResponseHeaders, now: float) -> float | None:
    """Seconds until the quota is available again, if the response says that it is used up; None otherwise.

    Successful responses may say so too: the last request of a quota is executed.
    """
    field = headers.get("ratelimit")
    if field is not None:
        waits = [item.get("t") for item in read_list(field.strip()) or () if item.get("r") == 0]
        longest = max((wait for wait in waits if wait is not None), default=-1)
        if longest >= 0:
            return _clamped(float(longest))
    for remaining, reset in _HEADER_PAIRS:
        if _integer(headers.get(remaining)) == 0:
            wait = _until(_integer(headers.get(reset)), headers, now)
            if wait is not None:
                return wait
    return None


def _retry_after(headers: ResponseHeaders, now: float) -> float | None:
    text = (headers.get("retry-after") or "").strip()
    if _SECONDS.fullmatch(text):
        return _clamped(float(text))
    moment = read_date(text, now)
    return None if moment is None else _clamped(moment - _sent_at(headers, now))


def _until(reset: int | None, headers: ResponseHeaders, now: float) -> float | None:
    """Seconds until a reset, which is given in seconds or as a Unix time."""
    if reset is None:
        return None
    if reset < _MAX_DELTA_SECONDS:
        return _clamped(float(reset))
    return _clamped(reset - _sent_at(headers, now)) if reset >= _MIN_EPOCH_SECONDS else None


def _sent_at(headers: ResponseHeaders, now: float) -> float:
    """When the response was sent."""
    moment = read_date((headers.get("date") or "").strip(), now)
    return now if moment is None else moment


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and _INTEGER.fullmatch(text := text.strip()) else None


def _clamped(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_SUGGESTED_SECONDS)
