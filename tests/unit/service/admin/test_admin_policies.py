"""`/admin/…`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import crestgate
from crestgate.service.observability.worker_snapshots import LastSeen
from unit.service.admin.admin_client import Control, problems

POLICY = {"key": "user-123", "type": "TOKEN_BUCKET", "capacity": 100, "refillRate": 10, "windowSeconds": 60}


def test_documented_example(control: Control) -> None:
    created = control.post("/admin/policies", POLICY)
    assert created.status_code == 201
    assert created.headers["location"] == "/admin/policies/user-123"
    assert created.json() == {
        "id": 1,
        "policyKey": "user-123",
        "type": "TOKEN_BUCKET",
        "capacity": 100,
        "refillRate": 10,
        "windowSeconds": 60,
    }
    for _ in range(13):
        control.check(key="user-123")
    assert control.get("/admin/metrics/user-123").json() == {
        "key": "user-123",
        "algorithm": "TOKEN_BUCKET",
        "currentTokens": 87,
        "capacity": 100,
        "windowRequestCount": 13,
        "windowSeconds": 60,
        "status": "OK",
    }


def test_policies_are_listed_changed_and_deleted(control: Control) -> None:
    control.post("/admin/policies", POLICY)
    control.post("/admin/policies", {"key": "a/b", "type": "sliding_window", "capacity": 5, "windowSeconds": 10})
    listed = control.get("/admin/policies")
    assert [(policy["policyKey"], policy["id"]) for policy in listed.json()] == [("a/b", 2), ("user-123", 1)]
    assert "link" not in listed.headers
    numbers = {name: value for name, value in POLICY.items() if name != "key"}
    changed = control.put("/admin/policies/user-123", {**numbers, "capacity": 7})
    assert (changed.json()["id"], changed.json()["capacity"]) == (1, 7)
    assert control.get("/admin/policies/user-123").json() == changed.json()
    assert control.check(key="user-123").limit == 7, "in force immediately"
    assert control.delete("/admin/policies/user-123").status_code == 204
    assert control.check(key="user-123").limit == 100, "the default policy"


@pytest.mark.parametrize("where", ["a%2Fb", "a/b"])
def test_keys_with_slashes(control: Control, where: str) -> None:
    control.post("/admin/policies", {**POLICY, "key": "a/b"})
    assert control.get(f"/admin/policies/{where}").json()["policyKey"] == "a/b"
    assert control.get(f"/admin/metrics/{where}").json()["key"] == "a/b"
    assert control.put(f"/admin/policies/{where}", {"key": "a/b"}).status_code == 200
    assert control.post(f"/admin/reset/{where}").status_code == 200
    assert control.delete(f"/admin/policies/{where}").status_code == 204


@pytest.mark.parametrize(
    "key", ["user:123|route:/v1/pay", "%2F", "a?b#c", "ü ", "*x", "//", "..;", "\x00", "a\nb", "\n"]
)
def test_keys_with_special_characters(control: Control, key: str) -> None:
    where = control.post("/admin/policies", {**POLICY, "key": key}).headers["location"]
    assert control.get(where).json()["policyKey"] == key
    assert control.delete(where).status_code == 204


def test_policies_are_paged(control: Control) -> None:
    for key in ("a b", "b", "c"):
        control.post("/admin/policies", {**POLICY, "key": key})
    first = control.get("/admin/policies?limit=1")
    assert first.headers["link"] == '</admin/policies?limit=1&after=a%20b>; rel="next"'
    second = control.get("/admin/policies?limit=1&after=a%20b")
    assert [policy["policyKey"] for policy in second.json()] == ["b"]
    assert "link" not in control.get("/admin/policies?limit=2&after=a%20b").headers


def test_existing_and_missing_policies(control: Control) -> None:
    control.post("/admin/policies", POLICY)
    again = control.post("/admin/policies", POLICY)
    assert again.status_code == 409
    assert again.json()["detail"] == "there is a policy for key 'user-123' already: change that one"
    for missing in (
        control.get("/admin/policies/x"),
        control.put("/admin/policies/x", {}),
        control.delete("/admin/policies/x"),
    ):
        assert missing.status_code == 404
        assert missing.json()["detail"] == "there is no policy for key 'x'"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"key"}),
        ({"key": ""}, {"key"}),
        ({"key": "*"}, {"key"}),
        ({"key": 5}, {"key"}),
        ({"key": "x" * 1025}, {"key"}),
        ({**POLICY, "capacity": 0, "refillRate": "10", "windowSeconds": 1.5, "type": "LEAKY"},
         {"capacity", "refillRate", "windowSeconds", "type"}),
        ({**POLICY, "capacity": True}, {"capacity"}),
        ({**POLICY, "capacity": 2**53}, {"capacity"}),
        ({**POLICY, "policyKey": "x"}, {"policyKey"}),
        ([], {""}),
        ("x", {""}),
    ],
)  # fmt: skip
def test_invalid_policies_are_refused(control: Control, body: Any, fields: set[str]) -> None:
    assert set(problems(control.post("/admin/policies", body))) == fields


def test_policy_is_identified_by_its_path(control: Control) -> None:
    control.post("/admin/policies", POLICY)
    assert set(problems(control.put("/admin/policies/user-123", {**POLICY, "key": "x"}))) == {"key"}


def test_policies_from_files_are_read_only(control_with: Callable[..., Control]) -> None:
    control = control_with("policies: [{key: filed, capacity: 5}]")
    assert control.get("/admin/policies/filed").json()["capacity"] == 5
    for refused in (
        control.post("/admin/policies", {"key": "filed"}),
        control.put("/admin/policies/filed", {}),
        control.delete("/admin/policies/filed"),
    ):
        assert refused.status_code == 409
        assert "defined in a file" in refused.json()["detail"]


# -- metrics --------------------------------------------------------------------------------------------------------


def test_states_of_a_key(control: Control) -> None:
    control.post("/admin/policies", {"key": "k", "type": "SLIDING_WINDOW", "capacity": 10, "windowSeconds": 30})
    states = []
    for _ in range(10):
        control.check(key="k")
        states.append(control.get("/admin/metrics/k").json()["status"])
    assert states == ["OK"] * 8 + ["WARNING", "THROTTLED"]
    body = control.get("/admin/metrics/k").json()
    assert (body["algorithm"], body["currentTokens"], body["windowSeconds"]) == ("SLIDING_WINDOW", 0, 30)


def test_key_without_a_policy_uses_the_default(control: Control) -> None:
    body = control.get("/admin/metrics/nobody").json()
    assert (body["algorithm"], body["capacity"], body["windowRequestCount"]) == ("TOKEN_BUCKET", 100, 0)


def test_key_matched_by_another_rule(control: Control) -> None:
    rule = {"rule_id": "r", "dimension": "key", "limit": 3, "window_seconds": 2.5, "algorithm": "gcra"}
    control.post("/api/v1/rules", rule)
    body = control.get("/admin/metrics/k").json()
    assert (body["algorithm"], body["capacity"], body["windowSeconds"]) == ("GCRA", 3, 2.5)


def test_metrics_list_keys_with_a_policy_or_recently_used(control: Control) -> None:
    control.post("/admin/policies", {**POLICY, "key": "b"})
    control.parts.metrics.keys.record("c", control.clock.ticks())
    control.parts.worker_snapshots.publish_seen(LastSeen({"a": 1}, {}))
    control.check(key="c")
    body = control.get("/admin/metrics").json()
    assert [(one["key"], one["windowRequestCount"]) for one in body] == [("a", 0), ("b", 0), ("c", 1)]
    first = control.get("/admin/metrics?limit=2")
    assert [one["key"] for one in first.json()] == ["a", "b"]
    assert first.headers["link"] == '</admin/metrics?limit=2&after=b>; rel="next"'


# -- reset and status -----------------------------------------------------------------------------------------------


def test_reset_clears_the_usage_of_a_key_and_is_audited(control: Control) -> None:
    control.post("/api/v1/rules", {"rule_id": "all", "dimension": "global", "limit": 5, "window_seconds": 60})
    for _ in range(3):
        control.check(key="k")
    reset = control.post("/admin/reset/k")
    assert (reset.status_code, reset.json()["currentTokens"]) == (200, 100)
    assert control.actions()[-1] == "reset key:k"
    assert control.check(key="other").remaining == 1, "the global counter is not reset"


def test_failed_reset(control: Control) -> None:
    control.store.broken = True
    assert control.post("/admin/reset/k").status_code == 503
    assert control.actions() == ["reset failed key:k"]
    assert control.get("/admin/metrics/k").status_code == 503
    assert control.get("/admin/metrics").status_code == 200, "there are no keys to query"


def test_status(control: Control) -> None:
    control.clock.advance(90)
    assert control.get("/admin/status").json() == {
        "status": "OK",
        "version": crestgate.__version__,
        "uptimeSeconds": 90,
        "stores": ["memory", "SQLite"],
        "problems": [],
    }
    control.store.broken = True
    body = control.get("/admin/status").json()
    assert body["status"] == "DEGRADED"
    assert body["problems"] == ["counters: the store of the counters is unavailable: try again"]
