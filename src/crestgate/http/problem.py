"""Problem documents: errors as `application/problem+json` (RFC 9457).

`title` and `detail` are repeated as `error` and `message`, for clients that expect those; `timestamp` helps to find the
response in the logs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from crestgate.core.decision import Decision
from crestgate.errors import (
    ConflictError,
    LeaseLostError,
    NotFoundError,
    ReadOnlyError,
    StaleVersionError,
    StoreError,
    ValidationError,
)
from crestgate.http.headers import header_name
from crestgate.rules.timestamps import format_timestamp

__all__ = ["CONTENT_TYPE", "QUOTA_EXCEEDED", "encode_problem", "exceeded", "on_one_line", "problem", "problem_of"]

CONTENT_TYPE = "application/problem+json"
BLANK = "about:blank"
"""The type of problems that the status alone explains."""
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
"""The type of a denial, from draft-ietf-httpapi-ratelimit-headers-11."""
VIOLATED = "violated-policies"
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (NotFoundError, 404),
    (ConflictError, 409),
    (ReadOnlyError, 409),
    (LeaseLostError, 409),
    (StaleVersionError, 412),
    (StoreError, 503),
    (TimeoutError, 503),
    (ValueError, 400),  # a ConfigError is one
    (TypeError, 400),
)


def problem(
    status: int,
    detail: str,
    *,
    type: str = BLANK,  # noqa: A002 - the member's name
    title: str | None = None,
    now_us: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The members of a problem document; `more` are additional ones. The default title is the status phrase.

    >>> problem(404, "there is no rule 'x'", now_us=0)["title"]
    'Not Found'
    """
    if title is None:
        title = _phrase(status)
    moment_us = time.time_ns() // 1000 if now_us is None else now_us
    return {
        "type": type,
        "title": title,
        "status": status,
        "detail": detail,
        "error": title,
        "message": detail,
        "timestamp": format_timestamp(moment_us),
        **more,
    }


def _phrase(status: int) -> str:
    """The reason phrase of a status, with a fallback: a proxy may be configured with a non-standard status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Server Error" if status >= 500 else "Client Error"


def encode_problem(members: Mapping[str, Any]) -> bytes:
    """A problem document as bytes. Characters that UTF-8 cannot encode, such as surrogates in a path, become `?`."""
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def exceeded(decision: Decision, status: int = 429, now_us: int | None = None) -> dict[str, Any]:
    """The problem document of a denial: which limits denied, without those that headers do not show, and when to
    retry."""
    denied = [part for part in decision.parts if not part.allowed]
    names = [header_name(part.name) for part in denied if part.algorithm.in_headers]
    wait = decision.retry_after
    if wait is not None:
        advice = f"retry after {-(-decision.wait_us // 1_000_000) if decision.wait_us else 0} s"
    else:
        advice = "this request can never pass"
    detail = f"rate limit exceeded ({', '.join(names)}): {advice}" if names else f"rate limit exceeded: {advice}"
    title = "Quota Exceeded" if status == HTTPStatus.TOO_MANY_REQUESTS else None
    more = {VIOLATED: names, "reason": decision.reason, "retry_after": wait}
    return problem(status, detail, type=QUOTA_EXCEEDED, title=title, now_us=now_us, **more)


def on_one_line(message: str) -> str:
    """A message without its indented lines, which mark the position of the error on terminals.

    >>> on_one_line("cannot read limit 'lots': the count is missing\\n    lots\\n    ^^^^")
    "cannot read limit 'lots': the count is missing"
    """
    if "\n" not in message:
        return message
    return " ".join([line for line in message.splitlines() if not line.startswith(" ")])


def problem_of(error: Exception) -> tuple[int, str, dict[str, Any]]:
    """Map an exception to status, detail and members; unknown exceptions are a bare 500."""
    if isinstance(error, ValidationError):
        problems = [{"field": one.field, "message": on_one_line(one.message)} for one in error.problems]
        return 400, "; ".join(": ".join(filter(None, entry.values())) for entry in problems), {"problems": problems}
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status, on_one_line(str(error)), {}
    return 500, "internal error; see the service's log", {}
