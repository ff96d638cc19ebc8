"""`/api/v1/users/…`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from unit.service.admin.admin_client import Control, problems

ORDERS = {"rule_id": "orders", "dimension": "user", "endpoint_pattern": "/orders/*", "limit": 10, "window_seconds": 60}


def test_effective_limits_with_live_counters(control: Control) -> None:
    control.post("/api/v1/rules", {**ORDERS, "algorithm": "fixed_window"})
    control.post("/api/v1/rules", {**ORDERS, "rule_id": "writes", "method": "POST", "limit": 2})
    control.post("/api/v1/rules", {**ORDERS, "rule_id": "gold", "tier": "gold", "limit": 500})
    control.post("/api/v1/rules", {**ORDERS, "rule_id": "look", "mode": "shadow", "limit": 1})
    control.post("/api/v1/rules", {**ORDERS, "rule_id": "address", "dimension": "ip"})
    for _ in range(9):
        control.check(user="bob", path="/orders/1", method="GET")
    body = control.get("/api/v1/users/bob/limits").json()
    assert (body["user_id"], body["tier"]) == ("bob", "free")
    counters = {limit["rule"]: (limit["limit"], limit["remaining"], limit["current_count"]) for limit in body["limits"]}
    assert counters == {"orders": (10, 1, 9), "writes": (2, 2, 0), "look": (1, 0, 1)}
    states = {limit["rule"]: (limit["state"], limit["mode"]) for limit in body["limits"]}
    assert states["orders"] == ("warning", "enforce")
    assert states["look"][1] == "shadow"
    orders = next(limit for limit in body["limits"] if limit["rule"] == "orders")
    assert 0 < orders["reset_after"] <= 60
    assert control.get("/api/v1/users/bob/limits").json() == body, "nothing was consumed"
    assert control.get("/api/v1/users/alice/limits").json()["limits"][0]["current_count"] == 0


def test_effective_limit_shows_its_calendar_window(control: Control) -> None:
    budget = {"rule_id": "budget", "dimension": "user", "limit": 10, "calendar": "month", "timezone": "Asia/Tokyo"}
    created = control.post("/api/v1/rules", budget)
    assert created.status_code == 201
    assert "window_seconds" not in created.json()
    control.post("/api/v1/rules", ORDERS)
    control.check(user="bob", path="/orders/1")
    limits = {limit["rule"]: limit for limit in control.get("/api/v1/users/bob/limits").json()["limits"]}
    found = limits["budget"]
    assert (found["calendar"], found["timezone"], found["remaining"]) == ("month", "Asia/Tokyo", 9)
    assert 0 < found["reset_after"] <= 31 * 86_400
    assert "calendar" not in limits["orders"]


def test_effective_limit_shows_its_lease(control: Control) -> None:
    control.post("/api/v1/rules", {**ORDERS, "algorithm": "gcra", "lease": True})
    control.post("/api/v1/rules", {**ORDERS, "rule_id": "writes", "method": "POST"})
    limits = {limit["rule"]: limit for limit in control.get("/api/v1/users/bob/limits").json()["limits"]}
    assert limits["orders"]["lease"] is True
    assert "lease" not in limits["writes"]


def test_limits_are_paged(control: Control) -> None:
    for number in range(5):
        rule = {"rule_id": f"r{number}", "dimension": "user", "endpoint_pattern": f"/p{number}", "limit": 5}
        control.post("/api/v1/rules", {**rule, "window_seconds": 60})
    first = control.get("/api/v1/users/bob/limits?limit=3").json()
    assert ([limit["rule"] for limit in first["limits"]], first["next"]) == (["r0", "r1", "r2"], "r2")
    last = control.get("/api/v1/users/bob/limits?limit=3&after=r2").json()
    assert ([limit["rule"] for limit in last["limits"]], last["next"]) == (["r3", "r4"], None)


def test_tier_changes_the_limits_and_keeps_the_usage(control: Control) -> None:
    control.post("/api/v1/rules", ORDERS)
    control.post("/api/v1/rules", {**ORDERS, "rule_id": "gold", "tier": "gold", "limit": 500})
    for _ in range(6):
        control.check(user="a/b", path="/orders/1")
    answer = control.put("/api/v1/users/a%2Fb/tier", {"tier": "gold"})
    assert (answer.status_code, answer.json()) == (200, {"user_id": "a/b", "tier": "gold"})
    body = control.get("/api/v1/users/a%2Fb/limits").json()
    (limit,) = body["limits"]
    assert (body["tier"], limit["rule"], limit["remaining"]) == ("gold", "gold", 494)
    assert control.put("/api/v1/users/a%2Fb/tier", {"tier": None}).json()["tier"] == "free"
    assert control.put("/api/v1/users/a%2Fb/tier", {"tier": None}).json()["tier"] == "free", "deleting twice is allowed"
    assert control.actions()[2:] == ["create tier:a/b", "delete tier:a/b"]


@pytest.mark.parametrize("body", [{}, {"tier": 5}, {"tier": ""}, {"tier": "*"}, {"tier": "x" * 256}])
def test_invalid_tiers_are_refused(control: Control, body: dict[str, Any]) -> None:
    assert set(problems(control.put("/api/v1/users/bob/tier", body))) == {"tier"}


def test_tier_from_a_file_can_be_overridden_but_not_deleted(control_with: Callable[..., Control]) -> None:
    control = control_with("tiers: {bob: gold}")
    assert control.get("/api/v1/users/bob/limits").json()["tier"] == "gold"
    assert control.put("/api/v1/users/bob/tier", {"tier": "lead"}).status_code == 200
    assert control.get("/api/v1/users/bob/limits").json()["tier"] == "lead"
    refused = control.put("/api/v1/users/bob/tier", {"tier": None})
    assert refused.status_code == 409
    assert "by a file" in refused.json()["detail"]


def test_override_of_a_rule(control: Control) -> None:
    control.post("/api/v1/rules", ORDERS)
    for _ in range(6):
        control.check(user="bob", path="/orders/1")
    made = control.post("/api/v1/users/bob/override", {"rule_id": "orders", "limit": 20, "duration_seconds": 3600})
    assert made.status_code == 201
    rule = made.json()
    assert (rule["identifier"], rule["limit"], rule["endpoint_pattern"]) == ("bob", 20, "/orders/*")
    assert rule["expires_at"] is not None
    assert control.get(made.headers["location"]).json() == rule
    (limit,) = control.get("/api/v1/users/bob/limits").json()["limits"]
    assert (limit["rule"], limit["remaining"], limit["expires_at"]) == (rule["rule_id"], 14, rule["expires_at"])
    again = control.post("/api/v1/users/bob/override", {"rule_id": "orders", "limit": 30, "duration_seconds": 0.5})
    assert (again.status_code, again.json()["version"]) == (201, 2)


def test_ended_override_is_listed_only_on_request(control: Control) -> None:
    control.post("/api/v1/rules", ORDERS)
    override = {"rule_id": "orders", "limit": 20, "duration_seconds": 60}
    made = control.post("/api/v1/users/bob/override", override).json()["rule_id"]
    assert {rule["rule_id"] for rule in control.get("/api/v1/rules").json()["rules"]} == {"orders", made}
    control.clock.advance(120)
    assert [rule["rule_id"] for rule in control.get("/api/v1/rules").json()["rules"]] == ["orders"]
    ended = control.get("/api/v1/rules?expired=true").json()["rules"]
    assert {rule["rule_id"] for rule in ended} == {"orders", made}
    assert [limit["rule"] for limit in control.get("/api/v1/users/bob/limits").json()["limits"]] == ["orders"]


def test_override_of_a_slot(control: Control) -> None:
    control.post("/api/v1/rules", {**ORDERS, "algorithm": "gcra"})
    slot = {"endpoint_pattern": "/orders/**", "window_seconds": 60, "limit": 5, "duration_seconds": 60}
    made = control.post("/api/v1/users/bob/override", slot).json()
    assert (made["algorithm"], made["name"]) == ("gcra", "override of orders for bob")
    (limit,) = control.get("/api/v1/users/bob/limits").json()["limits"]
    assert (limit["rule"], limit["limit"]) == (made["rule_id"], 5)
    other = control.post("/api/v1/users/bob/override", {**slot, "method": "POST"}).json()
    assert (other["method"], other["algorithm"], other["limit"]) == ("POST", "sliding_window_counter", 5)
    assert len(control.get("/api/v1/users/bob/limits").json()["limits"]) == 2, "a slot without a rule"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"rule_id", "limit", "duration_seconds"}),
        ({"rule_id": "orders", "limit": 5, "duration_seconds": 0}, {"duration_seconds"}),
        ({"rule_id": "orders", "limit": 5, "duration_seconds": 1e11}, {"duration_seconds"}),
        ({"rule_id": "orders", "limit": 5, "duration_seconds": "60"}, {"duration_seconds"}),
        ({"rule_id": "orders", "limit": -1, "duration_seconds": 60}, {"limit"}),
        ({"rule_id": "orders", "limit": True, "duration_seconds": 60}, {"limit"}),
        ({"rule_id": 5, "limit": 1, "duration_seconds": 60}, {"rule_id"}),
        ({"rule_id": "orders", "method": "GET", "limit": 1, "duration_seconds": 60}, {"method"}),
        ({"rule_id": "address", "limit": 1, "duration_seconds": 60}, {"rule_id"}),
        ({"rule_id": "off", "limit": 1, "duration_seconds": 60}, {"rule_id"}),
        ({"endpoint_pattern": "/x", "limit": 1, "duration_seconds": 60}, {"window_seconds"}),
        ({"window_seconds": 1, "limit": 1, "duration_seconds": 60}, {"endpoint_pattern"}),
        ({"endpoint_pattern": "/*x", "window_seconds": 1, "limit": 1, "duration_seconds": 60}, {"endpoint_pattern"}),
        ({"endpoint_pattern": 5, "window_seconds": "1", "limit": 1, "duration_seconds": 60},
         {"endpoint_pattern", "window_seconds"}),
        ({"rule_id": "orders", "limt": 5, "limit": 5, "duration_seconds": 60}, {"limt"}),
        ([], {""}),
    ],
)  # fmt: skip
def test_invalid_overrides_are_refused(control: Control, body: Any, fields: set[str]) -> None:
    control.post("/api/v1/rules", ORDERS)
    control.post("/api/v1/rules", {**ORDERS, "rule_id": "address", "dimension": "ip"})
    control.post("/api/v1/rules", {**ORDERS, "rule_id": "off", "mode": "disabled"})
    assert set(problems(control.post("/api/v1/users/bob/override", body))) == fields
    assert len(control.actions()) == 3


def test_overrides_of_unknown_rules_and_of_all_users_are_refused(control: Control) -> None:
    control.post("/api/v1/rules", ORDERS)
    body = {"rule_id": "nothing", "limit": 5, "duration_seconds": 60}
    assert control.post("/api/v1/users/bob/override", body).status_code == 404
    assert set(problems(control.post("/api/v1/users/*/override", {**body, "rule_id": "orders"}))) == {"user_id"}


def test_unreadable_counters_are_an_error(control: Control) -> None:
    control.post("/api/v1/rules", ORDERS)
    control.store.broken = True
    answer = control.get("/api/v1/users/bob/limits")
    assert answer.status_code == 503
    assert "is unavailable" in answer.json()["detail"]
    assert "nowhere" not in answer.text


def test_undo_of_an_override(control: Control) -> None:
    control.post("/api/v1/rules", ORDERS)
    for _ in range(6):
        control.check(user="bob", path="/orders/1")
    made = control.post("/api/v1/users/bob/override", {"rule_id": "orders", "limit": 20, "duration_seconds": 3600})
    assert made.json()["rule_id"] == "override:bob:orders"
    assert control.delete("/api/v1/users/bob/override?rule_id=orders").status_code == 204
    (limit,) = control.get("/api/v1/users/bob/limits").json()["limits"]
    assert (limit["rule"], limit["current_count"]) == ("orders", 6), "counters are kept"
    assert control.actions()[-2:] == ["create rule:override:bob:orders", "delete rule:override:bob:orders"]
    again = control.delete("/api/v1/users/bob/override?rule_id=orders")
    assert (again.status_code, again.json()["detail"]) == (404, "user 'bob' has no override of rule 'orders'")


def test_undo_of_an_override_in_a_slot_without_a_rule(control: Control) -> None:
    slot = {"endpoint_pattern": "/orders/*", "window_seconds": 60, "limit": 5, "duration_seconds": 60}
    made = control.post("/api/v1/users/bob/override", slot).json()
    assert made["rule_id"] == "override:bob:/orders/*,60s"
    again = control.post("/api/v1/users/bob/override", {**slot, "limit": 7}).json()
    assert (again["rule_id"], again["version"]) == (made["rule_id"], 2)
    answer = control.delete("/api/v1/users/bob/override", params={"rule_id": made["rule_id"]})
    assert answer.status_code == 204
    assert control.get("/api/v1/rules").json()["rules"] == []


@pytest.mark.parametrize("query", ["", "?rule_id=", "?rule=orders"])
def test_undo_needs_a_rule(control: Control, query: str) -> None:
    assert "rule_id" in problems(control.delete(f"/api/v1/users/bob/override{query}")) or query == "?rule=orders"
