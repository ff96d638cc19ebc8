"""Checks over HTTP: the three forms, the answer's fields, batches, quotas, resets and repeats."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from integration.service.api_helpers import make_key, problem
from integration.service.service_process import Service

FIELDS = {
    "allowed": bool,
    "limit": int,
    "remaining": int,
    "current_count": int,
    "reset_at": int,
    "reset_after": float,
    "retry_after": (float, type(None)),
    "reason": str,
    "rule": (str, type(None)),
    "state": str,
    "delay": float,
}


@pytest.fixture(scope="module", autouse=True)
def rules(admin: httpx.Client) -> Iterator[None]:
    """A rule per user on orders, one for everybody together, a shadow one; and plans."""
    made = [
        {"rule_id": "orders", "dimension": "user", "endpoint_pattern": "/orders/*", "limit": 5, "window_seconds": 3600},
        {
            "rule_id": "uploads",
            "dimension": "ip",
            "endpoint_pattern": "/uploads",
            "method": "POST",
            "algorithm": "leaky_bucket",
            "limit": 1,
            "window_seconds": 600,
            "burst": 3,
        },
        {
            "rule_id": "all-reports",
            "dimension": "api",
            "endpoint_pattern": "/reports",
            "limit": 3,
            "window_seconds": 3600,
        },
        {"rule_id": "reports", "dimension": "user", "endpoint_pattern": "/reports", "limit": 2, "window_seconds": 3600},
        {
            "rule_id": "watched",
            "dimension": "apikey",
            "endpoint_pattern": "/watched",
            "limit": 1,
            "window_seconds": 3600,
            "mode": "shadow",
        },
        {"rule_id": "blocked", "dimension": "client", "endpoint_pattern": "/closed", "limit": 0, "window_seconds": 60},
    ]
    for rule in made:
        assert admin.post("/api/v1/rules", json={"name": rule["rule_id"], **rule}).status_code == 201
    for name, limits in (("ten", ["10/year using fixed_window"]), ("two", ["2/day using sliding_window_log"])):
        assert admin.post("/api/v1/plans", json={"name": name, "limits": limits}).status_code == 201
    yield
    for rule in made:
        assert admin.delete(f"/api/v1/rules/{rule['rule_id']}").status_code == 204
    for name in ("ten", "two"):
        assert admin.delete(f"/api/v1/plans/{name}").status_code == 204


@pytest.fixture
def somebody() -> str:
    return uuid4().hex


def check(client: httpx.Client, body: dict[str, Any], path: str = "check", **options: Any) -> dict[str, Any]:
    response = client.post(f"/api/v1/{path}", json=body, **options)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    answer: dict[str, Any] = response.json()
    return answer


def shaped(answer: dict[str, Any]) -> dict[str, Any]:
    """Has every field of an answer, of its type, and numbers that belong together."""
    for name, kind in FIELDS.items():
        assert isinstance(answer[name], kind), name  # type: ignore[arg-type]
    assert set(answer) - set(FIELDS) <= {"queue_position", "parts", "shadows"}
    assert answer["current_count"] == answer["limit"] - answer["remaining"]
    assert answer["state"] in ("normal", "warning", "throttled")
    assert answer["reset_at"] - time.time() == pytest.approx(answer["reset_after"], abs=5)
    assert (answer["retry_after"] is None) or not answer["allowed"]
    for part in (*answer.get("parts", ()), *answer.get("shadows", ())):
        shaped(part)
    return answer


def test_a_check_of_a_subject(anyone: httpx.Client, somebody: str) -> None:
    body = {
        "dimension": "USER",
        "identifier": somebody,
        "endpoint": "/orders/7",
        "method": "GET",
        "cost": 2,
        "timestamp": 1_700_000_000,
    }
    first = shaped(check(anyone, body))
    assert (first["allowed"], first["limit"], first["remaining"], first["current_count"]) == (True, 5, 3, 2)
    assert (first["reason"], first["rule"], first["retry_after"], first["delay"]) == ("ok", "orders", None, 0.0)
    assert "parts" not in first
    second = shaped(check(anyone, body))
    assert (second["remaining"], second["state"]) == (1, "normal")
    denied = shaped(check(anyone, body))
    assert (denied["allowed"], denied["remaining"], denied["reason"]) == (False, 1, "limited")
    assert 0 < denied["retry_after"] <= 7200


def test_a_check_of_a_context_is_held_to_all_rules_that_apply(anyone: httpx.Client) -> None:
    names = [uuid4().hex for _ in range(3)]
    bodies = [{"context": {"user": name, "path": "//reports/", "method": "GET"}} for name in names]
    first = shaped(check(anyone, bodies[0]))
    assert sorted(part["rule"] for part in first["parts"]) == ["all-reports", "reports"]
    assert (first["rule"], first["limit"], first["remaining"]) == ("reports", 2, 1)
    check(anyone, bodies[1])
    third = shaped(check(anyone, bodies[1]))
    assert third["allowed"]
    denied = shaped(check(anyone, bodies[2]))  # nobody has a fourth
    assert (denied["allowed"], denied["rule"]) == (False, "all-reports")
    own = next(part for part in denied["parts"] if part["rule"] == "reports")
    assert own["remaining"] == 2  # which denied nothing, and lost nothing


def test_a_leaky_bucket_says_how_long_to_wait(anyone: httpx.Client) -> None:
    body = {"context": {"ip": "198.51.100.7", "path": "/uploads", "method": "POST"}}
    answers = [shaped(check(anyone, body)) for _ in range(4)]
    assert [answer["queue_position"] for answer in answers[:3]] == [1, 2, 3]
    assert answers[0]["delay"] == 0.0
    assert 0 < answers[1]["delay"] <= 600 < answers[2]["delay"] <= 1200
    assert [answer["allowed"] for answer in answers] == [True, True, True, False]


def test_a_check_of_a_key_under_plans(anyone: httpx.Client, somebody: str) -> None:
    body = {"key": somebody, "plans": ["ten", "two"]}
    first = shaped(check(anyone, body))
    assert [(part["rule"], part["remaining"]) for part in first["parts"]] == [("ten", 9), ("two", 1)]
    assert first["rule"] == "two"
    check(anyone, body)
    denied = shaped(check(anyone, body))
    assert (denied["allowed"], denied["rule"]) == (False, "two")
    assert [part["remaining"] for part in denied["parts"]] == [8, 0]


def test_a_check_of_a_key_under_its_policy(anyone: httpx.Client, somebody: str) -> None:
    answer = shaped(check(anyone, {"key": somebody, "cost": 3}))
    assert (answer["limit"], answer["remaining"]) == (100, 97)


@pytest.mark.parametrize("dimension", ["USER", "user", "Ip", "API_KEY", "apikey", "CLIENT", "KEY", "API", "GLOBAL"])
def test_dimensions_in_any_case(anyone: httpx.Client, somebody: str, dimension: str) -> None:
    answer = shaped(check(anyone, {"dimension": dimension, "identifier": somebody, "endpoint": "/nowhere"}))
    assert answer["allowed"]


def test_without_a_rule_all_is_allowed(anyone: httpx.Client, somebody: str) -> None:
    answer = shaped(check(anyone, {"dimension": "user", "identifier": somebody, "endpoint": "/nowhere"}))
    assert (answer["reason"], answer["rule"]) == ("no_rule", None)


def test_a_cost_that_can_never_pass(anyone: httpx.Client, somebody: str) -> None:
    answer = shaped(check(anyone, {"key": somebody, "plans": ["two"], "cost": 3}))
    assert (answer["allowed"], answer["reason"], answer["retry_after"]) == (False, "cost_exceeds_limit", None)


def test_a_limit_of_zero_blocks(anyone: httpx.Client, somebody: str) -> None:
    answer = shaped(check(anyone, {"context": {"client": somebody, "path": "/closed"}}))
    assert (answer["allowed"], answer["reason"], answer["retry_after"]) == (False, "blocked", None)


def test_a_cost_of_nothing_consumes_nothing(anyone: httpx.Client, somebody: str) -> None:
    answer = shaped(check(anyone, {"key": somebody, "plans": ["two"], "cost": 0}))
    assert (answer["allowed"], answer["remaining"]) == (True, 2)


def test_what_a_shadow_rule_would_have_denied_is_told(anyone: httpx.Client, somebody: str) -> None:
    body = {"context": {"api_key": somebody, "path": "/watched"}}
    answers = [shaped(check(anyone, body)) for _ in range(2)]
    assert [answer["allowed"] for answer in answers] == [True, True]
    assert [shadow["allowed"] for answer in answers for shadow in answer["shadows"]] == [True, False]
    assert answers[1]["shadows"][0]["rule"] == "watched"


def test_pressure_is_told_in_a_header(anyone: httpx.Client, somebody: str) -> None:
    body = {"key": somebody, "plans": ["ten"]}
    told = [anyone.post("/api/v1/check", json=body) for _ in range(11)]
    assert [response.headers.get("x-ratelimit-state") for response in told[:8]] == [None] * 8
    assert [response.headers["x-ratelimit-state"] for response in told[8:]] == ["warning", "throttled", "throttled"]
    assert [response.json()["state"] for response in told[8:]] == ["warning", "throttled", "throttled"]


def test_a_batch_is_answered_in_order(anyone: httpx.Client, somebody: str) -> None:
    checks = [
        {"key": somebody, "plans": ["two"]},
        {"dimension": "user", "identifier": somebody, "endpoint": "/orders/1", "cost": 4},
        {"context": {"client": somebody, "path": "/closed"}},
        {"key": somebody, "plans": ["two"]},
        {"key": somebody, "plans": ["two"]},
    ]
    decisions = check(anyone, {"checks": checks}, "check/batch")["decisions"]
    assert [shaped(decision)["allowed"] for decision in decisions] == [True, True, False, True, False]
    assert [decision["rule"] for decision in decisions] == ["two", "orders", "blocked", "two", "two"]


def test_the_largest_and_the_smallest_batch(anyone: httpx.Client, somebody: str) -> None:
    checks = [{"key": f"{somebody} {number}"} for number in range(1000)]
    decisions = check(anyone, {"checks": checks}, "check/batch")["decisions"]
    assert [decision["remaining"] for decision in decisions] == [99] * 1000
    assert check(anyone, {"checks": []}, "check/batch") == {"decisions": []}
    problem(anyone.post("/api/v1/check/batch", json={"checks": [*checks, checks[0]]}), 400, "checks", "1001")


def test_a_quota_consumes_nothing(anyone: httpx.Client, somebody: str) -> None:
    body = {"key": somebody, "plans": ["two"]}
    assert [shaped(check(anyone, body, "quota"))["remaining"] for _ in range(3)] == [2, 2, 2]
    check(anyone, body)
    check(anyone, body)
    spent = shaped(check(anyone, body, "quota"))
    assert (spent["allowed"], spent["remaining"]) == (False, 0)


def test_a_reset_forgets(anyone: httpx.Client, admin: httpx.Client, somebody: str) -> None:
    bodies: list[dict[str, Any]] = [
        {"key": somebody, "plans": ["ten", "two"]},
        {"dimension": "user", "identifier": somebody, "endpoint": "/orders/1"},
        {"context": {"user": somebody, "path": "/reports"}},
    ]
    for body in bodies:
        check(anyone, body)
        check(anyone, body)
        assert check(anyone, body, "quota")["current_count"] > 0
        told = check(admin, body, "reset")
        assert {"key", "rule"} == set(told["reset"][0])
        assert shaped(check(anyone, body))["current_count"] == 1
    entries = admin.get("/api/v1/audit", params={"limit": 10}).json()["entries"]
    assert [entry for entry in entries if entry["action"] == "reset" and somebody in entry["subject"]]


def test_a_reset_of_what_was_never_counted(admin: httpx.Client, somebody: str) -> None:
    assert admin.post("/api/v1/reset", json={"key": somebody}).status_code == 200
    body = {"dimension": "user", "identifier": somebody, "endpoint": "/nowhere"}
    assert check(admin, body, "reset") == {"reset": []}


def test_a_reset_needs_a_key(anyone: httpx.Client, somebody: str) -> None:
    problem(anyone.post("/api/v1/reset", json={"key": somebody}), 401, "key")


# -- repeats --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Idempotency-Key", "X-Idempotency-Key", "idempotency-key"])
def test_a_repeat_gets_the_first_answer(anyone: httpx.Client, somebody: str, header: str) -> None:
    body = {"key": somebody, "plans": ["ten", "two"]}
    headers = {header: f"{header} {somebody}"}
    first = shaped(check(anyone, body, headers=headers))
    again = [shaped(check(anyone, body, headers=headers)) for _ in range(3)]
    assert first["reason"] == "ok"
    assert [answer["reason"] for answer in again] == ["replayed"] * 3
    for answer in again:
        assert {**answer, "reason": "ok"} == first
    assert check(anyone, body, "quota")["parts"][1]["current_count"] == 1


def test_a_denial_is_repeated_too(anyone: httpx.Client, somebody: str) -> None:
    body = {"key": somebody, "plans": ["two"], "cost": 2}
    check(anyone, body)
    denied = check(anyone, body, headers={"idempotency-key": somebody})
    again = check(anyone, body, headers={"idempotency-key": somebody})
    assert (denied["allowed"], again["allowed"], again["reason"]) == (False, False, "replayed")


def test_both_headers_mean_the_same(anyone: httpx.Client, somebody: str) -> None:
    body = {"key": somebody, "plans": ["two"]}
    check(anyone, body, headers={"idempotency-key": somebody})
    assert check(anyone, body, headers={"x-idempotency-key": somebody})["reason"] == "replayed"


@pytest.mark.parametrize("path", ["check", "check/batch"])
def test_different_idempotency_keys_in_one_request_are_refused(anyone: httpx.Client, somebody: str, path: str) -> None:
    one = {"key": somebody, "plans": ["two"]}
    body = one if path == "check" else {"checks": [one]}
    a, b, also = ("Idempotency-Key", "a"), ("X-Idempotency-Key", "b"), ("Idempotency-Key", "b")
    for headers in ([a, b], [a, also], [a, also, b]):
        problem(anyone.post(f"/api/v1/{path}", json=body, headers=headers), 400, "Idempotency-Key")
    same = [("Idempotency-Key", somebody), ("X-Idempotency-Key", somebody)]
    assert anyone.post(f"/api/v1/{path}", json=body, headers=same).status_code == 200


def test_a_repeat_with_another_body_is_refused(anyone: httpx.Client, somebody: str) -> None:
    headers = {"idempotency-key": somebody}
    body = {"key": somebody, "plans": ["two"], "timestamp": 1_700_000_000}
    check(anyone, body, headers=headers)
    for other in ({**body, "cost": 2}, {**body, "key": "another"}, {**body, "plans": ["ten"]}):
        problem(anyone.post("/api/v1/check", json=other, headers=headers), 422, "another body")
    assert check(anyone, {**body, "timestamp": 1_700_000_009}, headers=headers)["reason"] == "replayed"
    assert check(anyone, {"plans": ["two"], "cost": 1, "key": somebody}, headers=headers)["reason"] == "replayed"
    problem(anyone.post("/api/v1/check/batch", json={"checks": [body]}, headers=headers), 422)


def test_a_batch_is_repeated_as_a_whole(anyone: httpx.Client, somebody: str) -> None:
    body = {"checks": [{"key": somebody, "plans": ["two"]}] * 3}
    headers = {"idempotency-key": somebody}
    first, again = (check(anyone, body, "check/batch", headers=headers)["decisions"] for _ in range(2))
    assert [decision["allowed"] for decision in first] == [decision["allowed"] for decision in again]
    assert [decision["allowed"] for decision in again] == [True, True, False]
    assert {decision["reason"] for decision in again} == {"replayed"}


def test_a_key_for_repeats_belongs_to_its_caller(
    service: Service, anyone: httpx.Client, admin: httpx.Client, somebody: str
) -> None:
    _, token = make_key(service, f"caller {somebody}", "--scope", "check")
    body = {"key": somebody, "plans": ["ten"]}
    headers = {"idempotency-key": somebody}
    with service.client(token) as other:
        reasons = []
        for client in (anyone, admin, other, anyone, admin, other):
            deadline = time.monotonic() + 30
            while (response := client.post("/api/v1/check", json=body, headers=headers)).status_code == 401:
                assert time.monotonic() < deadline  # a new key is known within moments
            reasons.append(response.json()["reason"])
    assert reasons == ["ok"] * 3 + ["replayed"] * 3


def test_a_refused_check_is_not_remembered(anyone: httpx.Client, somebody: str) -> None:
    headers = {"idempotency-key": somebody}
    problem(anyone.post("/api/v1/check", json={"key": somebody, "cost": -1}, headers=headers), 400)
    assert check(anyone, {"key": somebody}, headers=headers)["reason"] == "ok"


@pytest.mark.parametrize("header", ["idempotency-key", "x-idempotency-key"])
@pytest.mark.parametrize("key", ["x" * 256, "x" * 5000, ""])
def test_a_key_for_repeats_that_is_too_long_or_empty(anyone: httpx.Client, header: str, key: str) -> None:
    problem(anyone.post("/api/v1/check", json={"key": "a"}, headers={header: key}), 400, "Idempotency-Key")


# -- the client family's check --------------------------------------------------------------------------------------


def test_verify(anyone: httpx.Client, admin: httpx.Client, somebody: str) -> None:
    limits = [
        {"limitType": "DEFAULT", "limitName": "GLOBAL", "timeIntervalLimit": {"timeUnit": "DAY", "maxRequests": 4}},
        {"limitType": "API", "limitName": "getUsers", "timeIntervalLimit": {"timeUnit": "DAY", "maxRequests": 2}},
        {"limitType": "METHOD", "limitName": "POST", "timeIntervalLimit": {"timeUnit": "DAY", "maxRequests": 1}},
    ]
    made = admin.post("/ratelimiter/configure-client", json={"clientId": somebody, "limits": limits})
    assert made.status_code == 200
    calls = [("getUsers", "GET"), ("getUsers", "GET"), ("getUsers", "GET"), ("x", "POST"), ("x", "POST"), ("x", "PUT")]
    told = [
        anyone.post("/ratelimiter/verify-api-limit", json={"clientId": somebody, "apiName": api, "methodName": method})
        for api, method in calls
    ]
    assert [response.status_code for response in told] == [200, 200, 429, 200, 429, 200]
    assert told[0].json()["status"] == "SUCCESS"
    assert told[2].json() == {"status": "FAILURE", "message": "Rate limit exceeded"}
    assert set(told[0].json()) == {"status", "message"}
    assert int(told[2].headers["retry-after"]) > 0
    assert admin.delete("/ratelimiter/delete-client", params={"clientId": somebody}).status_code == 200


def test_verify_of_somebody_new_has_the_default_limits(anyone: httpx.Client, somebody: str) -> None:
    body = {"clientId": somebody, "apiName": "anything", "methodName": "GET"}
    statuses = [anyone.post("/ratelimiter/verify-api-limit", json=body).status_code for _ in range(105)]
    assert statuses[:100] == [200] * 100
    assert 429 in statuses[100:]
