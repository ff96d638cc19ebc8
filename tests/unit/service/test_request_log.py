"""How many lines the log has for requests that anybody can send."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from headgate.config.settings import Logs
from headgate.errors import StoreError
from headgate.service.asgi import Call
from headgate.service.auth.keys import Caller
from headgate.service.parts import Visit
from headgate.service.request_log import LINES_PER_SECOND, LONGEST_PATH, RequestLog


class Now:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def stranger(path: str = "/nowhere") -> Call:
    call = Call({"method": "GET", "path": path, "headers": []}, {}, "id-1")
    call.visit = Visit(None, "203.0.113.1", "id-1")
    return call


def test_calls_without_a_valid_key_have_few_lines() -> None:
    now = Now()
    log = RequestLog(Logs(), now)
    with capture_logs() as lines:
        for _ in range(1000):
            log.call(stranger(), 404, 0.001)
        assert len(lines) == LINES_PER_SECOND
        now.seconds += 1.0
        log.call(stranger(), 401, 0.001)
    summary, last = lines[LINES_PER_SECOND:]
    assert summary["event"] == "too many requests to log"
    assert summary["not_logged"] == 1000 - LINES_PER_SECOND
    assert summary["kind"] == "without a valid key"
    assert last["status"] == 401


def test_calls_with_a_valid_key_have_a_line_each() -> None:
    log = RequestLog(Logs(), Now())
    call = stranger()
    call.visit = Visit(Caller("ops", "write", "k1"), "203.0.113.1", "id-1")
    with capture_logs() as lines:
        for _ in range(2 * LINES_PER_SECOND):
            log.call(stranger(), 404, 0.001)
        for _ in range(2 * LINES_PER_SECOND):
            log.call(call, 200, 0.001)
    assert [line["caller"] for line in lines].count("ops") == 2 * LINES_PER_SECOND


@pytest.mark.parametrize("error", [StoreError("away"), RuntimeError("a fault")])
def test_failures_have_few_lines(error: Any) -> None:
    log = RequestLog(Logs(), Now())
    with capture_logs() as lines:
        for _ in range(1000):
            if isinstance(error, StoreError):
                log.failed(stranger(), error)
            else:
                log.unforeseen(stranger(), error)
    assert len(lines) == LINES_PER_SECOND


def test_paths_are_cut_in_lines() -> None:
    with capture_logs() as lines:
        RequestLog(Logs(), Now()).call(stranger("/" + "x" * 8000), 404, 0.001)
    assert len(lines[0]["path"]) == LONGEST_PATH
