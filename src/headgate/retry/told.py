"""What an answer says about waiting, in whichever of the ways that servers have for it.

    Retry-After: 17                                   seconds (some servers write 1.5: it is what they mean)
    Retry-After: Fri, 31 Dec 2027 23:59:59 GMT        or a date; one that is past is 0
    RateLimit: "per-user";r=0;t=17, "per-day";r=9;t=60  where nothing remains (r=0), the longest t
    RateLimit-Remaining: 0 and RateLimit-Reset: 17      the same in older drafts
    X-RateLimit-Remaining: 0 and X-RateLimit-Reset      the same by custom: seconds, or a moment since the epoch

The first that says something counts: whoever sends Retry-After beside the others means it (draft-ietf-httpapi-
ratelimit-headers-11). What is malformed says nothing. Dates are counted from the `Date` of the answer where it has one,
since the server's clock is the one they were written by; from `now` otherwise.

A number is believed up to `LONGEST_TOLD`. A reset of a thousand million and more is a moment, a smaller one seconds;
what would be neither in any reasonable server (thirty years, or milliseconds) is not believed at all.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from headgate.retry.dates import read_date
from headgate.retry.structured import read_list

__all__ = ["LONGEST_TOLD", "Headers", "told_wait", "used_up_wait"]

LONGEST_TOLD: Final = 366 * 86400.0
"""Seconds: whoever is told to wait for longer is told this."""
_SECONDS = re.compile(r"[0-9]{1,400}(?:\.[0-9]{1,400})?")
_WHOLE = re.compile(r"[0-9]{1,11}")
_FIRST_MOMENT: Final = 1_000_000_000
_MOST_SECONDS: Final = 100_000_000
_COUNTED: Final = (("ratelimit-remaining", "ratelimit-reset"), ("x-ratelimit-remaining", "x-ratelimit-reset"))


class Headers(Protocol):
    """The headers of an answer, found by name whatever the case of its letters. Those of httpx and requests are."""

    def get(self, name: str, /) -> str | None: ...


def told_wait(headers: Headers, now: float) -> float | None:
    """The seconds that a refused request is told to wait; None when it is told nothing. `now` is the time of day.

    >>> told_wait({"retry-after": "17"}, 0.0), told_wait({"ratelimit": '"per-user";r=0;t=5'}, 0.0)
    (17.0, 5.0)
    """
    wait = _retry_after(headers, now)
    return used_up_wait(headers, now) if wait is None else wait


def used_up_wait(headers: Headers, now: float) -> float | None:
    """The seconds until there is something left again, when the answer says that there is nothing; None otherwise.

    An answer may say so whether it was a refusal or not: the last request of a quota is carried out.
    """
    field = headers.get("ratelimit")
    if field is not None:
        waits = [item.get("t") for item in read_list(field.strip()) or () if item.get("r") == 0]
        longest = max((wait for wait in waits if wait is not None), default=-1)
        if longest >= 0:
            return _believed(float(longest))
    for remaining, reset in _COUNTED:
        if _whole(headers.get(remaining)) == 0:
            wait = _until(_whole(headers.get(reset)), headers, now)
            if wait is not None:
                return wait
    return None


def _retry_after(headers: Headers, now: float) -> float | None:
    text = (headers.get("retry-after") or "").strip()
    if _SECONDS.fullmatch(text):
        return _believed(float(text))
    moment = read_date(text, now)
    return None if moment is None else _believed(moment - _written(headers, now))


def _until(reset: int | None, headers: Headers, now: float) -> float | None:
    """The seconds to a reset, which is either that or a moment."""
    if reset is None:
        return None
    if reset < _MOST_SECONDS:
        return _believed(float(reset))
    return _believed(reset - _written(headers, now)) if reset >= _FIRST_MOMENT else None


def _written(headers: Headers, now: float) -> float:
    """When the answer was written."""
    moment = read_date((headers.get("date") or "").strip(), now)
    return now if moment is None else moment


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and _WHOLE.fullmatch(text := text.strip()) else None


def _believed(seconds: float) -> float:
    return min(max(seconds, 0.0), LONGEST_TOLD)
