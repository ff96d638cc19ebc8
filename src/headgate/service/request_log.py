"""What the log says of requests: who called what, how it was answered, and how long that took.

Calls of the control plane are few, and each is of interest. Checks come by the thousand, so they have a line each only
where that is asked for (`logs: {requests: all}`); what goes wrong with them is counted, and told by the limiter.

Paths come without their query, which may be secret, and cut off: clients make them up.
"""

from __future__ import annotations

from typing import Any

import structlog

from headgate.config.settings import Logs
from headgate.errors import HeadgateError
from headgate.service.asgi import Call
from headgate.service.observe.shown import shown_key

__all__ = ["RequestLog"]

LONGEST_PATH = 512
_log = structlog.stdlib.get_logger("headgate.requests")


class RequestLog:
    """Logs the requests of one worker, as configured."""

    def __init__(self, logs: Logs) -> None:
        self._keys = logs.keys
        self.checks = logs.requests == "all"
        self.calls = logs.requests != "none"

    def check(self, call: Call, status: int, seconds: float) -> None:
        """A check was answered."""
        fields = _said(call, status=status, seconds=round(seconds, 6))
        if call.subject:
            fields["key"] = shown_key(call.subject, self._keys)
        if call.allowed is not None:
            fields["allowed"] = call.allowed
        _log.info("check", **fields)

    def call(self, call: Call, status: int, seconds: float) -> None:
        """A call of the control plane was answered."""
        visit = call.visit
        caller = visit.caller.name if visit is not None and visit.caller is not None else None
        address = visit.address if visit is not None else None
        _log.info("request", **_said(call, status=status, seconds=round(seconds, 6), caller=caller, address=address))

    def failed(self, call: Call, error: HeadgateError) -> None:
        """What was asked for could not be done, and it is known why."""
        _log.warning("request failed", **_said(call, problem=str(error)))

    def unforeseen(self, call: Call, error: Exception) -> None:
        """A mistake of Headgate's own."""
        _log.error("request failed unforeseen", exc_info=error, **_said(call))


def _said(call: Call, **more: Any) -> dict[str, Any]:
    path: str = call.scope["path"]
    return {"request_id": call.request_id, "method": call.scope["method"], "path": path[:LONGEST_PATH], **more}
