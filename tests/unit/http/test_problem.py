"""Problem documents: their members, and the status of each Crestgate error."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from crestgate import ConfigError, Limit, Limiter, StoreError
from crestgate.errors import (
    ConflictError,
    CrestgateError,
    LeaseLostError,
    NotFoundError,
    Problem,
    ReadOnlyError,
    StaleVersionError,
    StoreClosedError,
    ValidationError,
)
from crestgate.http.problem import CONTENT_TYPE, QUOTA_EXCEEDED, encode_problem, exceeded, problem, problem_of
from crestgate.rules.compat.rule_ids import derived_id
from crestgate.testing import FakeClock

NOW_US = 1_700_000_000_500_000


def test_problem_has_every_member() -> None:
    assert problem(404, "there is no rule 'x'", now_us=NOW_US) == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "there is no rule 'x'",
        "error": "Not Found",
        "message": "there is no rule 'x'",
        "timestamp": "2023-11-14T22:13:20.500000Z",
    }
    assert CONTENT_TYPE == "application/problem+json"


def test_title_and_type_can_be_set() -> None:
    members = problem(400, "no", type="https://example.org/x", title="Bad", rule="r", problems=[])
    assert (members["type"], members["title"], members["error"]) == ("https://example.org/x", "Bad", "Bad")
    assert (members["rule"], members["problems"]) == ("r", [])


@pytest.mark.parametrize(
    ("status", "title"), [(499, "Client Error"), (520, "Server Error"), (503, "Service Unavailable")]
)
def test_any_status_has_a_title(status: int, title: str) -> None:
    assert problem(status, "no")["title"] == title


def test_timestamp_is_now() -> None:
    before = datetime.now(UTC)
    stamp = datetime.fromisoformat(problem(500, "x")["timestamp"])
    assert before.replace(microsecond=0) <= stamp <= datetime.now(UTC)


def test_problem_is_encoded_as_json() -> None:
    members = problem(404, "größer \ud800 \u2028 \x00", now_us=NOW_US)
    encoded = encode_problem(members)
    assert encoded.startswith(b'{"type":"about:blank","title":"Not Found","status":404,')
    assert json.loads(encoded) == {**members, "detail": "größer ? \u2028 \x00", "message": "größer ? \u2028 \x00"}


def test_problem_of_a_denial() -> None:
    limiter = Limiter("memory://", plans={"gold": "1/10 seconds", "daily": "50/day"}, clock=FakeClock(1000.25))
    limiter.check("user:hunter2", ["gold", "daily"])
    members = exceeded(limiter.check("user:hunter2", ["gold", "daily"]), now_us=NOW_US)
    assert QUOTA_EXCEEDED.endswith("#quota-exceeded")
    assert members == {
        "type": QUOTA_EXCEEDED,
        "title": "Quota Exceeded",
        "status": 429,
        "detail": "rate limit exceeded (gold): retry after 10 s",
        "error": "Quota Exceeded",
        "message": "rate limit exceeded (gold): retry after 10 s",
        "timestamp": "2023-11-14T22:13:20.500000Z",
        "violated-policies": ["gold"],
        "reason": "limited",
        "retry_after": 10.0,
    }


def test_problem_of_a_permanent_denial_with_another_status() -> None:
    members = exceeded(Limiter("memory://").check("user:hunter2", "5/minute", cost=6), 403)
    assert (members["status"], members["title"], members["retry_after"]) == (403, "Forbidden", None)
    assert members["detail"] == "rate limit exceeded (5/minute): this request can never pass"
    assert members["type"] == QUOTA_EXCEEDED


def test_problem_of_a_denial_has_no_key() -> None:
    plans = {derived_id("policy", "hunter2"): "1/minute"}
    decision = Limiter("memory://", plans=plans).check("user:1", "policy:hunter2", cost=2)
    assert b"hunter2" not in encode_problem(exceeded(decision))


PROBLEMS = [Problem("rules[0].limit", "must be 1"), Problem("", "must be a mapping", "crestgate.yaml", 3)]
ERRORS: list[tuple[Exception, int, str, dict[str, Any]]] = [
    (
        ValidationError(PROBLEMS),
        400,
        "rules[0].limit: must be 1; must be a mapping",
        {
            "problems": [
                {"field": "rules[0].limit", "message": "must be 1"},
                {"field": "", "message": "must be a mapping"},
            ]
        },
    ),
    (NotFoundError("none"), 404, "none", {}),
    (ConflictError("taken"), 409, "taken", {}),
    (ReadOnlyError("in a file"), 409, "in a file", {}),
    (LeaseLostError("lost"), 409, "lost", {}),
    (StaleVersionError("changed"), 412, "changed", {}),
    (StoreError("away"), 503, "away", {}),
    (StoreClosedError("closed"), 503, "closed", {}),
    (TimeoutError("locked"), 503, "locked", {}),
    (ConfigError("bad"), 400, "bad", {}),
    (ValueError("bad"), 400, "bad", {}),
    (TypeError("bad"), 400, "bad", {}),
    (KeyError("secret"), 500, "internal error; see the service's log", {}),
    (CrestgateError("secret"), 500, "internal error; see the service's log", {}),
]


@pytest.mark.parametrize(
    ("error", "status", "detail", "more"), ERRORS, ids=[type(error).__name__ for error, *_ in ERRORS]
)
def test_problem_of_an_error(error: Exception, status: int, detail: str, more: dict[str, Any]) -> None:
    assert problem_of(error) == (status, detail, more)


def test_syntax_markers_are_left_out() -> None:
    with pytest.raises(ConfigError) as caught:
        Limit.parse("5/fortnight")
    assert "^" in str(caught.value)
    for error in (caught.value, ValidationError([Problem("limits", str(caught.value))])):
        _, detail, _ = problem_of(error)
        assert "cannot read limit '5/fortnight': unknown unit 'fortnight'" in detail
        assert "\n" not in detail
        assert "^" not in detail
