"""The framework-independent response to a denial."""

from __future__ import annotations

import json

from crestgate.integrations import Denial
from crestgate.integrations.denial import default_denial
from unit.integrations.plain import limiter_on


def test_default_denial_is_a_problem() -> None:
    limiter = limiter_on()
    limiter.check("user:42", "1/minute")
    denial = default_denial(limiter.check("user:42", "1/minute"))
    assert (denial.status, denial.content_type) == (429, "application/problem+json")
    problem = json.loads(denial.body)
    assert problem["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert (problem["status"], problem["violated-policies"], problem["reason"]) == (429, ["1/minute"], "limited")
    assert problem["retry_after"] == 60
    assert b"user:42" not in denial.body


def test_impossible_cost_has_no_retry_after() -> None:
    problem = json.loads(default_denial(limiter_on().check("k", "1/minute", cost=2)).body)
    assert (problem["reason"], problem["retry_after"]) == ("cost_exceeds_limit", None)
    assert problem["detail"].endswith("this request can never pass")


def test_denial_headers() -> None:
    denial = Denial(503, b"busy", "text/plain", (("X-Why", "crowded"), ("Cache-Control", "no-store")))
    assert denial.all_headers() == [
        ("content-type", "text/plain"),
        ("content-length", "4"),
        ("x-why", "crowded"),
        ("cache-control", "no-store"),
    ]


def test_custom_denial_may_be_empty() -> None:
    assert Denial().all_headers() == [("content-type", "application/problem+json"), ("content-length", "0")]
    assert Denial() == Denial()
