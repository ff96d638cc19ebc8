"""What the log says of requests: who called what, how it was answered, and how long that took.

Calls of the control plane are few, and each is of interest. Checks come by the thousand, so they are logged only when
that is asked for (`logs: {requests: all}`), and what goes wrong with them is counted and told by the limiter.
"""

from __future__ import annotations

import logging

from headgate.config.settings import Logs
from headgate.errors import HeadgateError
from headgate.service.asgi import Call

__all__ = ["RequestLog"]

_log = logging.getLogger("headgate.requests")
LONGEST_PATH = 200
"""Characters of a path that are logged: clients make them up."""


class RequestLog:
    """Logs the requests of one worker, as configured."""

    def __init__(self, logs: Logs) -> None:
        self._checks = logs.requests == "all"
        self._admin = logs.requests != "none"

    def request(self, call: Call, status: int, seconds: float, *, checks: bool) -> None:
        """A request was answered. `checks` says whether the data plane did."""
        if self._checks if checks else self._admin:
            fields = {**_said(call), "status": status, "milliseconds": round(seconds * 1000, 3)}
            _log.info("request", extra={"fields": fields})

    def failed(self, call: Call, error: HeadgateError) -> None:
        """Something that is asked for could not be done, and it is known why."""
        _log.warning("request failed: %s", error, extra={"fields": _said(call)})

    def unforeseen(self, call: Call, error: Exception) -> None:
        """A mistake of Headgate's own."""
        _log.error("request failed unforeseen: %r", error, exc_info=error, extra={"fields": _said(call)})


def _said(call: Call) -> dict[str, object]:
    visit = call.visit
    return {
        "request_id": call.request_id,
        "method": call.scope["method"],
        "path": call.scope["path"][:LONGEST_PATH],
        "caller": visit.caller.name if visit is not None and visit.caller is not None else None,
        "address": visit.address if visit is not None else None,
    }
