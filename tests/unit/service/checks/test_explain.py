"""`POST /api/v1/explain` in one worker, on virtual time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from crestgate.service.checks.slices import next_turn
from crestgate.service.context import CallContext
from flaky_store import Flaky
from unit.service.worker import Worker

RULES: dict[tuple[str, str], dict[str, Any]] = {
    ("rule", "orders"): {"dimension": "user", "endpoint_pattern": "/orders/*", "limit": 3, "window_seconds": 60},
    ("rule", "orders-gold"): {
        "dimension": "user",
        "tier": "gold",
        "endpoint_pattern": "/orders/*",
        "limit": 5,
        "window_seconds": 60,
    },
    ("rule", "all"): {"dimension": "global", "limit": 100, "window_seconds": 60, "algorithm": "fixed_window"},
    ("rule", "trial"): {"dimension": "ip", "limit": 1, "window_seconds": 60, "mode": "shadow"},
    ("rule", "secret-key"): {"dimension": "apikey", "identifier": "hunter2", "limit": 1, "window_seconds": 60},
    ("plan", "gold"): {"limits": ["10/second burst 20"]},
}


@pytest.fixture
def worker() -> Iterator[Worker]:
    records = {
        (kind, name): {"rule_id": name, **body} if kind == "rule" else body for (kind, name), body in RULES.items()
    }
    made = Worker(records)
    yield made
    made.close()


def explain(worker: Worker, body: dict[str, Any]) -> dict[str, Any]:
    call = CallContext({"method": "POST", "path": "/api/v1/explain", "headers": []}, {}, "id")
    response = worker.respond("/api/v1/explain", call, json.dumps(body).encode())
    assert response.status == 200
    data: dict[str, Any] = json.loads(response.body)
    return data


def by_id(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {rule["rule_id"]: rule for rule in data["rules"]}


def test_leases_are_shown() -> None:
    worker = Worker(
        {
            ("rule", "hot"): {
                "rule_id": "hot",
                "dimension": "user",
                "limit": 9,
                "window_seconds": 60,
                "algorithm": "gcra",
                "lease": True,
            },
            ("rule", "all"): {"rule_id": "all", "dimension": "global", "limit": 9, "window_seconds": 60},
            ("plan", "gold"): {"limits": ["10/second"], "lease": True},
        }
    )
    try:
        rules = by_id(explain(worker, {"context": {"user": "42"}}))
        assert (rules["hot"]["limit"], rules["hot"]["lease"]) == ("9/minute using gcra", True)
        assert "lease" not in rules["all"]
        assert by_id(explain(worker, {"key": "a", "plans": ["gold"]}))["gold"]["lease"] is True
    finally:
        worker.close()


def test_explains_what_applies_and_what_does_not(worker: Worker) -> None:
    data = explain(worker, {"context": {"user": "42", "path": "/orders/7", "tier": "gold", "ip": "10.0.0.1"}})
    assert [(rule["rule_id"], rule["status"]) for rule in data["rules"]] == [
        ("orders-gold", "applies"),
        ("all", "applies"),
        ("trial", "shadow"),
        ("orders", "lost"),
        ("secret-key", "not_matched"),
    ]
    rules = by_id(data)
    assert rules["orders"]["lost_to"] == "orders-gold"
    assert rules["orders"]["reason"] == "lost to orders-gold: a tier beats *"
    assert rules["orders"]["counter"] is None
    assert rules["orders-gold"]["limit"] == "5/minute using sliding_window_counter"
    assert rules["orders-gold"]["counter"] == {
        "key": "sha256:ea3fd43be1e5",
        "limit": 5,
        "remaining": 5,
        "used": 0,
        "reset_after": 0.0,
        "state": "normal",
        "store": "the memory of this process",
    }
    assert (data["considered"], data["truncated"]) == (5, False)
    assert data["store"] == "the memory of this process"
    assert data["decision"]["allowed"] is True
    assert [part["rule"] for part in data["decision"]["parts"]] == ["orders-gold", "all"]
    assert data["changes"] == ["more than 5 requests of cost 1 from now on: rule orders-gold denies then"]


def test_explains_a_denial_and_what_would_change_it(worker: Worker) -> None:
    check = {"dimension": "USER", "identifier": "42", "endpoint": "/orders/7"}
    for _ in range(3):
        assert worker.post("/api/v1/check", check)["allowed"] is True
    data = explain(worker, check)
    denied = worker.post("/api/v1/check", check)
    assert data["decision"] == denied
    assert data["decision"]["allowed"] is False
    assert by_id(data)["orders"]["counter"]["used"] == 3
    wait, raised, override, mode, reset = data["changes"]
    assert wait == f"a wait of {denied['retry_after']:.6g} s, if nothing else comes meanwhile"
    assert raised == "rule orders raised to at least 4"
    assert override == "an override for user 42: crestgate override 42 orders 4 --for 2h"
    assert mode == "rule orders in mode shadow or disabled"
    assert reset.startswith("a reset of its counters")


def test_shadow_rule_that_would_deny_is_shown(worker: Worker) -> None:
    context = {"context": {"ip": "10.0.0.1"}}
    worker.post("/api/v1/check", context)
    data = explain(worker, context)
    assert data["decision"]["reason"] == "shadow"
    assert by_id(data)["trial"]["counter"]["remaining"] == 0
    assert data["changes"][-1] == "shadow rule trial in mode enforce: it would deny this request"


def test_plans_and_policies_of_a_key(worker: Worker) -> None:
    data = explain(worker, {"key": "k", "plans": ["gold"], "cost": 3})
    (plan,) = data["rules"]
    assert (plan["rule_id"], plan["status"], plan["counter"]["remaining"]) == ("gold", "applies", 20)
    assert data["changes"] == ["more than 6 requests of cost 3 from now on: plan gold denies then"]
    data = explain(worker, {"key": "k"})
    assert [rule["reason"] for rule in data["rules"] if rule["dimension"] == "key"] == [
        "the default policy: no policy is for this key"
    ]


def test_api_keys_are_never_shown(worker: Worker) -> None:
    for context in ({"api_key": "hunter2"}, {"user": "1"}):
        data = explain(worker, {"context": context})
        assert "hunter2" not in json.dumps(data)
        assert by_id(data)["secret-key"]["identifier"].startswith("sha256:")


@pytest.mark.parametrize("policy", ["open", "closed", "local"])
def test_failure_policy_is_said_and_has_no_numbers(policy: str) -> None:
    store = Flaky()
    rule = {"rule_id": "it", "dimension": "user", "limit": 3, "window_seconds": 60, "on_store_error": policy}
    worker = Worker({("rule", "it"): rule}, store)
    store.broken = True
    try:
        data = explain(worker, {"context": {"user": "1"}})
    finally:
        worker.close()
    (shown,) = data["rules"]
    assert data["decision"]["reason"] == ("fallback" if policy == "local" else f"fail_{policy}")
    assert data["changes"][0].startswith("an answer of the store")
    if policy == "local":
        assert shown["counter"]["store"] == "this process (on_store_error: local)"
    else:
        assert shown["counter"] is None
        assert shown["reason"] == f"is for every user; its store did not answer: fail_{policy} by on_store_error"


def test_large_rule_set_is_examined_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = {"dimension": "user", "limit": 3, "window_seconds": 60}
    records = {("rule", f"r{n}"): {"rule_id": f"r{n}", "identifier": f"u{n}", **rule} for n in range(1000)}
    worker = Worker({**records, ("rule", "all"): {"rule_id": "all", **rule}})
    turns = 0

    def count_turn() -> Any:
        nonlocal turns
        turns += 1
        return next_turn()

    monkeypatch.setattr("crestgate.service.checks.explain.next_turn", count_turn)
    try:
        data = explain(worker, {"context": {"user": "u7"}})
    finally:
        worker.close()
    assert turns == 3
    assert [(one["rule_id"], one["status"]) for one in data["rules"][:2]] == [("r7", "applies"), ("all", "lost")]
    assert (len(data["rules"]), data["considered"], data["truncated"]) == (200, 1001, True)


def test_no_rule_is_named_where_only_a_shadow_rule_matches() -> None:
    trial = {"rule_id": "only", "dimension": "ip", "limit": 1, "window_seconds": 60, "mode": "shadow"}
    worker = Worker({("rule", "only"): trial})
    try:
        answers = [worker.post("/api/v1/check", {"context": {"ip": "10.0.0.1"}}) for _ in range(2)]
    finally:
        worker.close()
    assert [(one["allowed"], one["reason"], one["rule"]) for one in answers] == [
        (True, "no_rule", None),
        (True, "shadow", None),
    ]
