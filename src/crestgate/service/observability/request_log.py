"""Request log: who called what, the response status, and how long it took.

Admin calls are few, and all of them are logged. Checks are frequent, and logged only with `logs: {requests: all}`;
their failures are counted, and logged by the limiter.

A logged path never contains keys or names; the line has the key as a field, like other lines. A path that no route
matched is truncated. Query strings may be secret, and are never logged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import structlog

from crestgate.config.settings import Logs
from crestgate.errors import CrestgateError
from crestgate.service.context import CallContext, Scope
from crestgate.service.observability.labels import key_label, rule_label

__all__ = ["LineLimit", "RequestLog"]

MAX_PATH = 200
LINES_PER_SECOND = 20
"""Of each kind that anybody can cause, per worker: calls without a valid key, and failures."""
BATCH = "/api/v1/check/batch"
"""A known path that is longer than what is kept of an unknown one."""
DIMENSIONS = {"key": "key", "user_id": "user"}
"""Dimension of a path parameter that identifies a subject."""
_CONVERTER = re.compile(r":\w+\}")
_log = structlog.stdlib.get_logger("crestgate.requests")


class LineLimit:
    """Limits one kind of line per second: anybody can send requests that are refused, and fill a disk."""

    def __init__(self, kind: str, now: Callable[[], float] = time.monotonic) -> None:
        self._kind = kind
        self._now = now
        self._second = float("-inf")
        self._lines = 0
        self._omitted = 0

    def allows(self) -> bool:
        """Whether one more line may be written. The first of a second reports how many were omitted before."""
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
    """Logs the requests of one worker."""

    def __init__(self, logs: Logs, now: Callable[[], float] = time.monotonic) -> None:
        self._unauthenticated = LineLimit("without a valid key", now)
        self._failures = LineLimit("failed", now)
        self._keys = logs.keys
        self.checks = logs.requests == "all"
        self.calls = logs.requests != "none"

    def check(self, call: CallContext, status: int, seconds: float) -> None:
        """A check was answered."""
        fields = self._fields(call, status=status, seconds=round(seconds, 6))
        if call.allowed is not None:
            fields["allowed"] = call.allowed
        _log.info("check", **fields)

    def call(self, call: CallContext, status: int, seconds: float) -> None:
        """An admin call was answered. Lines of calls without a valid key are limited."""
        caller = None if call.caller is None else call.caller.name
        if caller is None and not self._unauthenticated.allows():
            return
        fields = self._fields(call, status=status, seconds=round(seconds, 6), caller=caller, address=call.address)
        _log.info("request", **fields)

    def unauthorized(self, call: CallContext, reason: str) -> None:
        """A gRPC call was refused for its key or address."""
        _log.warning("unauthorized gRPC call", **self._fields(call, problem=reason, address=call.address))

    def failed(self, call: CallContext, error: CrestgateError) -> None:
        """A request failed for a known reason, such as a store that is down."""
        if self._failures.allows():
            _log.warning("request failed", **self._fields(call, problem=str(error)))

    def internal_error(self, call: CallContext, error: Exception) -> None:
        """A bug in Crestgate."""
        if self._failures.allows():
            _log.error("unhandled error in request", exc_info=error, **self._fields(call))

    def _fields(self, call: CallContext, **more: Any) -> dict[str, Any]:
        scope = call.scope
        fields = {"request_id": call.request_id, "method": scope["method"], "path": logged_path(scope), **more}
        subject = call.subject
        for name, value in scope.get("path_params", {}).items():
            if name in DIMENSIONS:
                subject = f"{DIMENSIONS[name]}:{value}"
            elif name == "rule_id":
                fields["rule"] = rule_label(value)
        if subject:
            fields["key"] = key_label(subject, self._keys)
        return fields


def logged_path(scope: Scope) -> str:
    """A path without keys and names: the template of its route, else its first segments.

    >>> logged_path({"path": "/admin/reset/user:42"}), logged_path({"path": "/api/v1/users/42/tier"})
    ('/admin/reset/…', '/api/v1/users/…')
    """
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        return _CONVERTER.sub("}", route)
    path: str = scope["path"]
    parts = path.split("/")
    depth = 4 if path.startswith("/api/") else 3
    if len(parts) > depth and path != BATCH:
        path = "/".join([*parts[:depth], "…"])
    return path[:MAX_PATH]
