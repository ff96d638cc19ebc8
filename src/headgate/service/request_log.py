"""What the log says of requests: who called what, how it was answered, and how long that took.

Calls of the control plane are few, and each is of interest. Checks come by the thousand, so they have a line each only
where that is asked for (`logs: {requests: all}`); what goes wrong with them is counted, and told by the limiter.

A path says what was called and not whom it was about: keys and names in it are left out, and the line has the key as
others do. Of a path that was refused before it was looked up, or is none, there is the beginning. Queries may be
secret, and are nowhere.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import structlog

from headgate.config.settings import Logs
from headgate.errors import HeadgateError
from headgate.service.asgi import Call, Scope
from headgate.service.observe.shown import shown_key, shown_rule

__all__ = ["RequestLog"]

LONGEST_PATH = 200
LINES_PER_SECOND = 20
"""Lines of each kind that anybody can cause, in one worker: calls without a valid key, and failures."""
BATCH = "/api/v1/check/batch"
"""The one path of checks that is longer than what is left of a path that nobody knows."""
DIMENSIONS = {"key": "key", "user_id": "user"}
"""Whom a path is about, by the name that its route has for that."""
_CONVERTER = re.compile(r":\w+\}")
_log = structlog.stdlib.get_logger("headgate.requests")


class LineLimit:
    """Bounds one kind of line to so many a second. Anybody can send requests that are refused, and fill a disk."""

    def __init__(self, kind: str, now: Callable[[], float] = time.monotonic) -> None:
        self._kind = kind
        self._now = now
        self._second = float("-inf")
        self._lines = 0
        self._omitted = 0

    def allows(self) -> bool:
        """Whether one more line may be written. The first of a second tells how many were left out before."""
        now = self._now()
        if now - self._second >= 1.0:
            if self._omitted:
                _log.warning("too many requests to log", kind=self._kind, not_logged=self._omitted)
            self._second, self._lines, self._omitted = now, 0, 0
        if self._lines >= LINES_PER_SECOND:
            self._omitted += 1
            return False
        self._lines += 1
        return True


class RequestLog:
    """Logs the requests of one worker, as configured."""

    def __init__(self, logs: Logs, now: Callable[[], float] = time.monotonic) -> None:
        self._strangers = LineLimit("without a valid key", now)
        self._failures = LineLimit("failed", now)
        self._keys = logs.keys
        self.checks = logs.requests == "all"
        self.calls = logs.requests != "none"

    def check(self, call: Call, status: int, seconds: float) -> None:
        """A check was answered."""
        fields = self._said(call, status=status, seconds=round(seconds, 6))
        if call.allowed is not None:
            fields["allowed"] = call.allowed
        _log.info("check", **fields)

    def call(self, call: Call, status: int, seconds: float) -> None:
        """A call of the control plane was answered. Those without a valid key have only so many lines."""
        visit = call.visit
        caller = visit.caller.name if visit is not None and visit.caller is not None else None
        if caller is None and not self._strangers.allows():
            return
        address = visit.address if visit is not None else None
        said = self._said(call, status=status, seconds=round(seconds, 6), caller=caller, address=address)
        _log.info("request", **said)

    def turned_away(self, call: Call, why: str) -> None:
        """Somebody who calls over gRPC may not."""
        address = call.visit.address if call.visit is not None else None
        _log.warning("calls over gRPC are refused", **self._said(call, problem=why, address=address))

    def failed(self, call: Call, error: HeadgateError) -> None:
        """What was asked for could not be done, and it is known why."""
        if self._failures.allows():
            _log.warning("request failed", **self._said(call, problem=str(error)))

    def unforeseen(self, call: Call, error: Exception) -> None:
        """A mistake of Headgate's own."""
        if self._failures.allows():
            _log.error("request failed unforeseen", exc_info=error, **self._said(call))

    def _said(self, call: Call, **more: Any) -> dict[str, Any]:
        scope = call.scope
        said = {"request_id": call.request_id, "method": scope["method"], "path": called(scope), **more}
        subject = call.subject
        for name, value in scope.get("path_params", {}).items():
            if name in DIMENSIONS:
                subject = f"{DIMENSIONS[name]}:{value}"
            elif name == "rule_id":
                said["rule"] = shown_rule(value)
        if subject:
            said["key"] = shown_key(subject, self._keys)
        return said


def called(scope: Scope) -> str:
    """A path without what may be somebody's: the one that its route has, else the first parts of it.

    >>> called({"path": "/admin/reset/user:42"}), called({"path": "/api/v1/users/42/tier"})
    ('/admin/reset/…', '/api/v1/users/…')
    """
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        return _CONVERTER.sub("}", route)
    path: str = scope["path"]
    parts = path.split("/")
    kept = 4 if path.startswith("/api/") else 3
    if len(parts) > kept and path != BATCH:
        path = "/".join([*parts[:kept], "…"])
    return path[:LONGEST_PATH]
