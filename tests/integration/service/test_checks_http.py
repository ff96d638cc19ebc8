"""Checks over HTTP: the three forms, the fields of the response, batches, quotas, resets and replays."""

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
    """A rule per user, a global one, a shadow one, and plans."""
    rule_list = [
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
    for rule in rule_list:
        assert admin.post("/api/v1/rules", json={"name": rule["rule_id"], **rule}).status_code == 201
    for name, limits in (("ten", ["10/year using fixed_window"]), ("two", ["2/day using sliding_window_log"])):
        assert admin.post("/api/v1/plans", json={"name": name, "limits": limits}).status_code == 201
    yield
    for rule in rule_list:
        assert admin.delete(f"/api/v1/rules/{rule['rule_id']}").status_code == 204
    for name in ("ten", "two"):
        assert admin.delete(f"/api/v1/plans/{name}").status_code == 204


@pytest.fixture
def user() -> str:
    return uuid4().hex


def check(client: httpx.Client, body: dict[str, Any], path: str = "check", **options: Any) -> dict[str, Any]:
    response = client.post(f"/api/v1/{path}", json=body, **options)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    result: dict[str, Any] = response.json()
    return result


def assert_shape(decision: dict[str, Any]) -> dict[str, Any]:
    """Assert that a decision has all fields with their types and consistent numbers."""
    for name, kind in FIELDS.items():
        assert isinstance(decision[name], kind), name  # type: ignore[arg-type]
    assert set(decision) - set(FIELDS) <= {"queue_position", "parts", "shadows"}
    assert decision["current_count"] == decision["limit"] - decision["remaining"]
    assert decision["state"] in ("normal", "warning", "throttled")
    assert decision["reset_at"] - time.time() == pytest.approx(decision["reset_after"], abs=5)
    assert (decision["retry_after"] is None) or not decision["allowed"]
    for part in (*decision.get("parts", ()), *decision.get("shadows", ())):
        assert_shape(part)
    return decision


def test_check_of_a_subject(anyone: httpx.Client, user: str) -> None:
    body = {
        "dimension": "USER",
        "identifier": user,
        "endpoint": "/orders/7",
        "method": "GET",
        "cost": 2,
        "timestamp": 1_700_000_000,
    }
    first = assert_shape(check(anyone, body))
    assert (first["allowed"], first["limit"], first["remaining"], first["current_count"]) == (True, 5, 3, 2)
    assert (first["reason"], first["rule"], first["retry_after"], first["delay"]) == ("ok", "orders", None, 0.0)
    assert "parts" not in first
    second = assert_shape(check(anyone, body))
    assert (second["remaining"], second["state"]) == (1, "normal")
    denied = assert_shape(check(anyone, body))
    assert (denied["allowed"], denied["remaining"], denied["reason"]) == (False, 1, "limited")
    assert 0 < denied["retry_after"] <= 7200


def test_check_of_a_context_applies_all_matching_rules(anyone: httpx.Client) -> None:
    names = [uuid4().hex for _ in range(3)]
    bodies = [{"context": {"user": name, "path": "//reports/", "method": "GET"}} for name in names]
    first = assert_shape(check(anyone, bodies[0]))
    assert sorted(part["rule"] for part in first["parts"]) == ["all-reports", "reports"]
    assert (first["rule"], first["limit"], first["remaining"]) == ("reports", 2, 1)
    check(anyone, bodies[1])
    third = assert_shape(check(anyone, bodies[1]))
    assert third["allowed"]
    denied = assert_shape(check(anyone, bodies[2]))  # a fourth is denied to every user
    assert (denied["allowed"], denied["rule"]) == (False, "all-reports")
    own = next(part for part in denied["parts"] if part["rule"] == "reports")
    assert own["remaining"] == 2  # not denied by this rule, and not charged


def test_leaky_bucket_returns_delays(anyone: httpx.Client) -> None:
    body = {"context": {"ip": "198.51.100.7", "path": "/uploads", "method": "POST"}}
    decisions = [assert_shape(check(anyone, body)) for _ in range(4)]
    assert [decision["queue_position"] for decision in decisions[:3]] == [1, 2, 3]
    assert decisions[0]["delay"] == 0.0
    assert 0 < decisions[1]["delay"] <= 600 < decisions[2]["delay"] <= 1200
    assert [decision["allowed"] for decision in decisions] == [True, True, True, False]


def test_check_of_a_key_with_plans(anyone: httpx.Client, user: str) -> None:
    body = {"key": user, "plans": ["ten", "two"]}
    first = assert_shape(check(anyone, body))
    assert [(part["rule"], part["remaining"]) for part in first["parts"]] == [("ten", 9), ("two", 1)]
    assert first["rule"] == "two"
    check(anyone, body)
    denied = assert_shape(check(anyone, body))
    assert (denied["allowed"], denied["rule"]) == (False, "two")
    assert [part["remaining"] for part in denied["parts"]] == [8, 0]


def test_check_of_a_key_with_its_policy(anyone: httpx.Client, user: str) -> None:
    decision = assert_shape(check(anyone, {"key": user, "cost": 3}))
    assert (decision["limit"], decision["remaining"]) == (100, 97)


@pytest.mark.parametrize("dimension", ["USER", "user", "Ip", "API_KEY", "apikey", "CLIENT", "KEY", "API", "GLOBAL"])
def test_dimensions_in_any_case(anyone: httpx.Client, user: str, dimension: str) -> None:
    decision = assert_shape(check(anyone, {"dimension": dimension, "identifier": user, "endpoint": "/nowhere"}))
    assert decision["allowed"]


def test_no_rule_allows(anyone: httpx.Client, user: str) -> None:
    decision = assert_shape(check(anyone, {"dimension": "user", "identifier": user, "endpoint": "/nowhere"}))
    assert (decision["reason"], decision["rule"]) == ("no_rule", None)


def test_cost_over_the_limit_never_passes(anyone: httpx.Client, user: str) -> None:
    decision = assert_shape(check(anyone, {"key": user, "plans": ["two"], "cost": 3}))
    assert (decision["allowed"], decision["reason"], decision["retry_after"]) == (False, "cost_exceeds_limit", None)


def test_zero_limit_blocks(anyone: httpx.Client, user: str) -> None:
    decision = assert_shape(check(anyone, {"context": {"client": user, "path": "/closed"}}))
    assert (decision["allowed"], decision["reason"], decision["retry_after"]) == (False, "blocked", None)


def test_zero_cost_consumes_nothing(anyone: httpx.Client, user: str) -> None:
    decision = assert_shape(check(anyone, {"key": user, "plans": ["two"], "cost": 0}))
    assert (decision["allowed"], decision["remaining"]) == (True, 2)


def test_shadow_denials_are_returned(anyone: httpx.Client, user: str) -> None:
    body = {"context": {"api_key": user, "path": "/watched"}}
    decisions = [assert_shape(check(anyone, body)) for _ in range(2)]
    assert [decision["allowed"] for decision in decisions] == [True, True]
    assert [shadow["allowed"] for decision in decisions for shadow in decision["shadows"]] == [True, False]
    assert decisions[1]["shadows"][0]["rule"] == "watched"


def test_pressure_is_in_a_header(anyone: httpx.Client, user: str) -> None:
    body = {"key": user, "plans": ["ten"]}
    responses = [anyone.post("/api/v1/check", json=body) for _ in range(11)]
    assert [response.headers.get("x-ratelimit-state") for response in responses[:8]] == [None] * 8
    assert [response.headers["x-ratelimit-state"] for response in responses[8:]] == [
        "warning",
        "throttled",
        "throttled",
    ]
    assert [response.json()["state"] for response in responses[8:]] == ["warning", "throttled", "throttled"]


def test_batch_decisions_are_in_order(anyone: httpx.Client, user: str) -> None:
    checks = [
        {"key": user, "plans": ["two"]},
        {"dimension": "user", "identifier": user, "endpoint": "/orders/1", "cost": 4},
        {"context": {"client": user, "path": "/closed"}},
        {"key": user, "plans": ["two"]},
        {"key": user, "plans": ["two"]},
    ]
    decisions = check(anyone, {"checks": checks}, "check/batch")["decisions"]
    assert [assert_shape(decision)["allowed"] for decision in decisions] == [True, True, False, True, False]
    assert [decision["rule"] for decision in decisions] == ["two", "orders", "blocked", "two", "two"]


def test_largest_and_smallest_batch(anyone: httpx.Client, user: str) -> None:
    checks = [{"key": f"{user} {number}"} for number in range(1000)]
    decisions = check(anyone, {"checks": checks}, "check/batch")["decisions"]
    assert [decision["remaining"] for decision in decisions] == [99] * 1000
    assert check(anyone, {"checks": []}, "check/batch") == {"decisions": []}
    problem(anyone.post("/api/v1/check/batch", json={"checks": [*checks, checks[0]]}), 400, "checks", "1001")


def test_quota_consumes_nothing(anyone: httpx.Client, user: str) -> None:
    body = {"key": user, "plans": ["two"]}
    assert [assert_shape(check(anyone, body, "quota"))["remaining"] for _ in range(3)] == [2, 2, 2]
    check(anyone, body)
    check(anyone, body)
    spent = assert_shape(check(anyone, body, "quota"))
    assert (spent["allowed"], spent["remaining"]) == (False, 0)


def test_reset_clears_counters(anyone: httpx.Client, admin: httpx.Client, user: str) -> None:
    bodies: list[dict[str, Any]] = [
        {"key": user, "plans": ["ten", "two"]},
        {"dimension": "user", "identifier": user, "endpoint": "/orders/1"},
        {"context": {"user": user, "path": "/reports"}},
    ]
    for body in bodies:
        check(anyone, body)
        check(anyone, body)
        assert check(anyone, body, "quota")["current_count"] > 0
        result = check(admin, body, "reset")
        assert {"key", "rule"} == set(result["reset"][0])
        assert assert_shape(check(anyone, body))["current_count"] == 1
    entries = admin.get("/api/v1/audit", params={"limit": 10}).json()["entries"]
    assert [entry for entry in entries if entry["action"] == "reset" and user in entry["subject"]]


def test_reset_of_unused_counter(admin: httpx.Client, user: str) -> None:
    assert admin.post("/api/v1/reset", json={"key": user}).status_code == 200
    body = {"dimension": "user", "identifier": user, "endpoint": "/nowhere"}
    assert check(admin, body, "reset") == {"reset": []}


def test_reset_needs_a_key(anyone: httpx.Client, user: str) -> None:
    problem(anyone.post("/api/v1/reset", json={"key": user}), 401, "key")


# -- replays --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Idempotency-Key", "X-Idempotency-Key", "idempotency-key"])
def test_replay_gets_the_first_decision(anyone: httpx.Client, user: str, header: str) -> None:
    body = {"key": user, "plans": ["ten", "two"]}
    headers = {header: f"{header} {user}"}
    first = assert_shape(check(anyone, body, headers=headers))
    replays = [assert_shape(check(anyone, body, headers=headers)) for _ in range(3)]
    assert first["reason"] == "ok"
    assert [decision["reason"] for decision in replays] == ["replayed"] * 3
    for decision in replays:
        assert {**decision, "reason": "ok"} == first
    assert check(anyone, body, "quota")["parts"][1]["current_count"] == 1


def test_denial_is_replayed(anyone: httpx.Client, user: str) -> None:
    body = {"key": user, "plans": ["two"], "cost": 2}
    check(anyone, body)
    denied = check(anyone, body, headers={"idempotency-key": user})
    replay = check(anyone, body, headers={"idempotency-key": user})
    assert (denied["allowed"], replay["allowed"], replay["reason"]) == (False, False, "replayed")


def test_both_idempotency_headers_are_equivalent(anyone: httpx.Client, user: str) -> None:
    body = {"key": user, "plans": ["two"]}
    check(anyone, body, headers={"idempotency-key": user})
    assert check(anyone, body, headers={"x-idempotency-key": user})["reason"] == "replayed"


@pytest.mark.parametrize("path", ["check", "check/batch"])
def test_different_idempotency_keys_in_one_request_are_refused(anyone: httpx.Client, user: str, path: str) -> None:
    one = {"key": user, "plans": ["two"]}
    body = one if path == "check" else {"checks": [one]}
    a, b, also = ("Idempotency-Key", "a"), ("X-Idempotency-Key", "b"), ("Idempotency-Key", "b")
    for headers in ([a, b], [a, also], [a, also, b]):
        problem(anyone.post(f"/api/v1/{path}", json=body, headers=headers), 400, "Idempotency-Key")
    same = [("Idempotency-Key", user), ("X-Idempotency-Key", user)]
    assert anyone.post(f"/api/v1/{path}", json=body, headers=same).status_code == 200


def test_replay_with_another_body_is_refused(anyone: httpx.Client, user: str) -> None:
    headers = {"idempotency-key": user}
    body = {"key": user, "plans": ["two"], "timestamp": 1_700_000_000}
    check(anyone, body, headers=headers)
    for other in ({**body, "cost": 2}, {**body, "key": "another"}, {**body, "plans": ["ten"]}):
        problem(anyone.post("/api/v1/check", json=other, headers=headers), 422, "another body")
    assert check(anyone, {**body, "timestamp": 1_700_000_009}, headers=headers)["reason"] == "replayed"
    assert check(anyone, {"plans": ["two"], "cost": 1, "key": user}, headers=headers)["reason"] == "replayed"
    problem(anyone.post("/api/v1/check/batch", json={"checks": [body]}, headers=headers), 422)


def test_batch_is_replayed_as_a_whole(anyone: httpx.Client, user: str) -> None:
    body = {"checks": [{"key": user, "plans": ["two"]}] * 3}
    headers = {"idempotency-key": user}
    first, replay = (check(anyone, body, "check/batch", headers=headers)["decisions"] for _ in range(2))
    assert [decision["allowed"] for decision in first] == [decision["allowed"] for decision in replay]
    assert [decision["allowed"] for decision in replay] == [True, True, False]
    assert {decision["reason"] for decision in replay} == {"replayed"}


def test_idempotency_key_belongs_to_its_caller(
    service: Service, anyone: httpx.Client, admin: httpx.Client, user: str
) -> None:
    _, token = make_key(service, f"caller {user}", "--scope", "check")
    body = {"key": user, "plans": ["ten"]}
    headers = {"idempotency-key": user}
    with service.client(token) as other:
        reasons = []
        for client in (anyone, admin, other, anyone, admin, other):
            deadline = time.monotonic() + 30
            while (response := client.post("/api/v1/check", json=body, headers=headers)).status_code == 401:
                assert time.monotonic() < deadline  # a new key is known soon
            reasons.append(response.json()["reason"])
    assert reasons == ["ok"] * 3 + ["replayed"] * 3


def test_refused_check_is_not_recorded(anyone: httpx.Client, user: str) -> None:
    headers = {"idempotency-key": user}
    problem(anyone.post("/api/v1/check", json={"key": user, "cost": -1}, headers=headers), 400)
    assert check(anyone, {"key": user}, headers=headers)["reason"] == "ok"


@pytest.mark.parametrize("header", ["idempotency-key", "x-idempotency-key"])
@pytest.mark.parametrize("key", ["x" * 256, "x" * 5000, ""])
def test_too_long_or_empty_idempotency_key_is_refused(anyone: httpx.Client, header: str, key: str) -> None:
    problem(anyone.post("/api/v1/check", json={"key": "a"}, headers={header: key}), 400, "Idempotency-Key")


# -- verify-api-limit --------------------------------------------------------------------------------------


def test_verify(anyone: httpx.Client, admin: httpx.Client, user: str) -> None:
    limits = [
        {"limitType": "DEFAULT", "limitName": "GLOBAL", "timeIntervalLimit": {"timeUnit": "DAY", "maxRequests": 4}},
        {"limitType": "API", "limitName": "getUsers", "timeIntervalLimit": {"timeUnit": "DAY", "maxRequests": 2}},
        {"limitType": "METHOD", "limitName": "POST", "timeIntervalLimit": {"timeUnit": "DAY", "maxRequests": 1}},
    ]
    response = admin.post("/ratelimiter/configure-client", json={"clientId": user, "limits": limits})
    assert response.status_code == 200
    calls = [("getUsers", "GET"), ("getUsers", "GET"), ("getUsers", "GET"), ("x", "POST"), ("x", "POST"), ("x", "PUT")]
    responses = [
        anyone.post("/ratelimiter/verify-api-limit", json={"clientId": user, "apiName": api, "methodName": method})
        for api, method in calls
    ]
    assert [response.status_code for response in responses] == [200, 200, 429, 200, 429, 200]
    assert responses[0].json()["status"] == "SUCCESS"
    assert responses[2].json() == {"status": "FAILURE", "message": "Rate limit exceeded"}
    assert set(responses[0].json()) == {"status", "message"}
    assert int(responses[2].headers["retry-after"]) > 0
    assert admin.delete("/ratelimiter/delete-client", params={"clientId": user}).status_code == 200


def test_verify_of_a_new_client_has_the_default_limits(anyone: httpx.Client, user: str) -> None:
    body = {"clientId": user, "apiName": "anything", "methodName": "GET"}
    statuses = [anyone.post("/ratelimiter/verify-api-limit", json=body).status_code for _ in range(105)]
    assert statuses[:100] == [200] * 100
    assert 429 in statuses[100:]
