"""Rate limits of log lines for unauthenticated requests."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from crestgate.config.settings import Logs
from crestgate.errors import StoreError
from crestgate.service.auth.keys import Caller
from crestgate.service.context import CallContext
from crestgate.service.observability.request_log import LINES_PER_SECOND, MAX_PATH, RequestLog


class Now:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def anonymous_call(path: str = "/nowhere") -> CallContext:
    call = CallContext({"method": "GET", "path": path, "headers": []}, {}, "id-1")
    call.address = "203.0.113.1"
    return call


def test_unauthenticated_calls_are_logged_at_a_limited_rate() -> None:
    now = Now()
    log = RequestLog(Logs(), now)
    with capture_logs() as lines:
        for _ in range(1000):
            log.call(anonymous_call(), 404, 0.001)
        assert len(lines) == LINES_PER_SECOND
        now.seconds += 1.0
        log.call(anonymous_call(), 401, 0.001)
    summary, last = lines[LINES_PER_SECOND:]
    assert summary["event"] == "too many requests to log"
    assert summary["not_logged"] == 1000 - LINES_PER_SECOND
    assert summary["kind"] == "without a valid key"
    assert last["status"] == 401


def test_authenticated_calls_are_all_logged() -> None:
    log = RequestLog(Logs(), Now())
    call = anonymous_call()
    call.caller, call.address = Caller("ops", "write", "k1"), "203.0.113.1"
    with capture_logs() as lines:
        for _ in range(2 * LINES_PER_SECOND):
            log.call(anonymous_call(), 404, 0.001)
        for _ in range(2 * LINES_PER_SECOND):
            log.call(call, 200, 0.001)
    assert [line["caller"] for line in lines].count("ops") == 2 * LINES_PER_SECOND


@pytest.mark.parametrize("error", [StoreError("away"), RuntimeError("a fault")])
def test_failures_are_logged_at_a_limited_rate(error: Any) -> None:
    log = RequestLog(Logs(), Now())
    with capture_logs() as lines:
        for _ in range(1000):
            if isinstance(error, StoreError):
                log.failed(anonymous_call(), error)
            else:
                log.internal_error(anonymous_call(), error)
    assert len(lines) == LINES_PER_SECOND


def test_long_paths_are_truncated() -> None:
    with capture_logs() as lines:
        RequestLog(Logs(), Now()).call(anonymous_call("/" + "x" * 8000), 404, 0.001)
    assert len(lines[0]["path"]) == MAX_PATH
