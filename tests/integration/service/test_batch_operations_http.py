"""Batches beyond checks: counters by name, other operations, and exact responses in whole numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from conformance.service_here import ServiceHere
from crestgate import AsyncLimiter, Limiter, RequestContext, StoreError
from crestgate.core.failure_policies import OnStoreError
from flaky_store import Flaky
from integration.service.api_helpers import problem

RULES = """
plans: {pair: [5/day using fixed_window, 3/hour using sliding_window_log]}
rules:
- {name: users, dimension: user, limit: 2, window_seconds: 3600}
"""


@pytest.fixture(scope="module", autouse=True)
def pair(admin: httpx.Client) -> Iterator[None]:
    body = {"name": "pair-op", "limits": ["5/day using fixed_window", "3/hour using sliding_window_log"]}
    assert admin.post("/api/v1/plans", json=body).status_code == 201
    yield
    assert admin.delete("/api/v1/plans/pair-op").status_code == 204


@pytest.fixture
def key() -> str:
    return uuid4().hex


def post_batch(
    client: httpx.Client, *checks: dict[str, Any], exact: bool = True, idempotency_key: str | None = None
) -> httpx.Response:
    headers = {} if idempotency_key is None else {"idempotency-key": idempotency_key}
    return client.post("/api/v1/check/batch", json={"checks": checks, "exact": exact}, headers=headers)


def check_batch(client: httpx.Client, *checks: dict[str, Any], exact: bool = True) -> list[Any]:
    response = post_batch(client, *checks, exact=exact)
    assert response.status_code == 200, response.text
    decisions: list[Any] = response.json()["decisions"]
    return decisions


def test_exact_responses_have_whole_numbers_for_every_counter(anyone: httpx.Client, key: str) -> None:
    named = {"key": key, "name": "api", "limit": "4/day using fixed_window"}
    (decision,) = check_batch(anyone, {"counters": [named, {"key": key, "plan": "pair-op", "cost": 2}]})
    first, second, third = decision["counters"]
    assert {name: first[name] for name in ("at", "allowed", "remaining", "wait", "reason")} == {
        "at": 0,
        "allowed": True,
        "remaining": 3,
        "wait": 0,
        "reason": "ok",
    }
    assert "key" not in first, "fields of the request are not repeated"
    described = [
        {name: entry[name] for name in ("at", "key", "name", "label", "limit", "binds")} for entry in (second, third)
    ]
    assert described == [
        {
            "at": 1,
            "key": key,
            "name": name,
            "label": name,
            "limit": limit,
            "binds": True,
        }
        for name, limit in (
            ("pair-op", "5/day using fixed_window"),
            ("pair-op#2", "3/hour using sliding_window_log"),
        )
    ]
    assert [entry["remaining"] for entry in (second, third)] == [3, 1]
    assert all(type(entry[name]) is int for entry in decision["counters"] for name in ("wait", "reset", "tick"))


def test_exact_responses_to_the_other_forms(anyone: httpx.Client, key: str) -> None:
    unlimited = {"context": {"ip": "10.9.8.7", "path": "/nothing"}}
    plans, policy, nothing = check_batch(anyone, {"key": key, "plans": ["pair-op"]}, {"key": key}, unlimited)
    assert [entry["name"] for entry in plans["counters"]] == ["pair-op", "pair-op#2"]
    assert [entry["label"] for entry in policy["counters"]] == ["default-policy"]
    assert nothing == {"counters": []}


def test_every_operation(anyone: httpx.Client, admin: httpx.Client, key: str) -> None:
    counter = {"key": key, "limit": "10/day using fixed_window"}
    (taken,) = check_batch(anyone, {"counters": [{**counter, "cost": 4}]})
    tick = taken["counters"][0]["tick"]
    checks: list[dict[str, Any]] = [
        {"op": "peek", "counters": [counter]},
        {"op": "charge", "counters": [{**counter, "cost": 20}]},
        {"op": "give_back", "counters": [{**counter, "cost": 4, "amount": 3, "tick": tick}]},
        {"op": "take", "counters": [counter]},
        {"op": "reset", "counters": [counter]},
        {"op": "peek", "counters": [{**counter, "cost": 0}]},
    ]
    numbers = [decision["counters"][0] for decision in check_batch(admin, *checks)]
    assert [(entry["allowed"], entry["remaining"]) for entry in numbers] == [
        (True, 6),
        (True, 0),
        (True, 0),
        (False, 0),
        (True, 10),
        (True, 10),
    ]
    plain = check_batch(
        admin, {"op": "peek", "key": key, "plans": ["pair-op"]}, {"op": "peek", "counters": [counter]}, exact=False
    )
    assert [(entry["rule"], entry["remaining"]) for entry in plain] == [("pair-op#2", 3), ("inline", 10)]


def test_non_binding_counter_does_not_deny(anyone: httpx.Client, key: str) -> None:
    counters = [{"key": key, "limit": "9/day"}, {"key": key, "limit": "1/day", "binds": False}]
    decisions = [check_batch(anyone, {"counters": counters}, exact=False)[0] for _ in range(2)]
    assert [(entry["allowed"], entry["reason"], entry["remaining"]) for entry in decisions] == [
        (True, "ok", 8),
        (True, "shadow", 7),
    ]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ({"counters": []}, "counters: has 0 counters: name 1 to 100"),
        ({"counters": [{"key": "a"}]}, "counters[0].limit: is missing: write a limit such as 100/minute"),
        ({"counters": [{"key": "a", "limit": "5/fortnight"}]}, "counters[0].limit: "),
        ({"counters": [{"key": "a", "limit": "5/s; 6/s"}]}, "counters[0].limit: '5/s; 6/s' is 2 limits"),
        ({"counters": [{"key": "a", "limit": "5/s using magic"}]}, "unknown algorithm 'magic'"),
        (
            {"counters": [{"key": "a", "limit": "5/s", "plan": "pair-op"}]},
            "counters[0].plan: can only be combined with key and cost",
        ),
        ({"counters": [{"key": "a", "plan": "golf"}]}, "counters[0].plan: there is no plan 'golf'"),
        ({"counters": [{"key": "", "limit": "5/s"}]}, "counters[0].key: must not be empty"),
        ({"counters": [{"key": "a", "limit": "5/s", "cost": -1}]}, "counters[0].cost: must be a whole number"),
        ({"counters": [{"key": "a", "limit": "5/s", "name": ""}]}, "counters[0].name: has 0 characters"),
        ({"counters": [{"key": "a", "limit": "5/s", "tick": -1}]}, "counters[0].tick: must be a whole number from 0"),
        ({"counters": [{"key": "a", "limit": "5/s", "tick": 2**70}]}, "counters[0].tick: must be a whole number"),
        ({"counters": [{"key": "a", "limit": "5/s", "amount": 1}]}, "counters[0].amount: is the amount to refund"),
        (
            {"op": "give_back", "counters": [{"key": "a", "limit": "5/s", "amount": 2}]},
            "counters[0].amount: is the amount to refund",
        ),
        ({"counters": [{"key": "a", "limit": "5/s"}] * 2}, "counters: has a counter twice"),
        ({"counters": [{"key": "a", "limit": "5/s"}], "key": "a"}, "key: cannot be combined with 'counters'"),
        ({"counters": [{"key": "a", "limit": "5/s"}], "cost": 2}, "cost: must be given for each counter instead"),
        ({"op": "steal", "key": "a"}, "op: must be one of take, peek, charge, give_back, reset, not 'steal'"),
        ({"op": "charge", "key": "a"}, "op: 'charge' requires 'counters'"),
    ],
)
def test_errors_name_the_field(anyone: httpx.Client, key: str, check: dict[str, Any], message: str) -> None:
    valid = {"key": key, "plans": ["pair-op"]}
    error = problem(post_batch(anyone, valid, check, exact=False), 400)
    assert error["detail"].startswith("checks[1].")
    assert message in error["detail"]
    assert "\n" not in error["detail"]
    first, second = check_batch(anyone, valid, check)
    assert first["counters"][0]["remaining"] == 4, "the valid check is decided once: a refused batch counts nothing"
    assert second["error"]["status"] == 400
    assert second["error"]["detail"] == error["detail"]


def test_checks_together_with_an_invalid_one_are_not_decided(anyone: httpx.Client, key: str) -> None:
    valid, invalid = {"key": key, "plans": ["pair-op"]}, {"key": key, "plans": ["golf"]}
    body = {"exact": True, "checks": [valid, valid, invalid, valid, valid], "together": [[1, 3], [3, 5]]}
    decisions = anyone.post("/api/v1/check/batch", json=body).json()["decisions"]
    assert ["error" in decision for decision in decisions] == [False, True, True, False, False]
    assert decisions[1]["error"]["detail"] == decisions[2]["error"]["detail"]
    assert decisions[2]["error"]["detail"].startswith("checks[2].plans[0]: there is no plan 'golf'")
    left = [decision["counters"][1]["remaining"] for decision in decisions if "counters" in decision]
    assert left == [2, 1, 0], "the second was not charged"


@pytest.mark.parametrize("together", [[[0, 3]], [[0, 0]], [[1, 2], [0, 1]], [[0, 2], [1, 2]], [[-1, 1]]])
def test_invalid_ranges_of_checks(anyone: httpx.Client, key: str, together: list[list[int]]) -> None:
    checks = [{"key": key, "plans": ["pair-op"]}] * 2
    body = {"exact": True, "checks": checks, "together": together}
    problem(anyone.post("/api/v1/check/batch", json=body), 400, "must be a range of checks")
    plain = {"checks": checks, "together": [[0, 2]]}
    problem(anyone.post("/api/v1/check/batch", json=plain), 400, "together: is only valid with exact")


def test_single_checks_have_no_operations_or_counters(anyone: httpx.Client) -> None:
    problem(anyone.post("/api/v1/check", json={"key": "a", "op": "peek"}), 400, "op: goes into a batch")
    body = {"counters": [{"key": "a", "limit": "5/s"}]}
    for path in ("check", "quota"):
        problem(anyone.post(f"/api/v1/{path}", json=body), 400, "counters: goes into a batch")


def test_idempotency_key_is_for_checks_only(anyone: httpx.Client, key: str) -> None:
    problem(post_batch(anyone, {"key": key}, idempotency_key=key), 400, "Idempotency-Key: is only valid with checks")
    problem(
        post_batch(anyone, {"op": "peek", "key": key}, exact=False, idempotency_key=key),
        400,
        "is only valid with checks",
    )
    assert post_batch(anyone, {"key": key}, exact=False, idempotency_key=key).status_code == 200


def test_reset_without_permission_resets_nothing(anyone: httpx.Client, key: str) -> None:
    counter = {"key": key, "limit": "5/day"}
    check_batch(anyone, {"counters": [counter]})
    error = problem(post_batch(anyone, {"op": "reset", "counters": [counter]}, exact=False), 401)
    assert "checks[0]: API key required" in error["detail"]
    wrong, valid = check_batch(anyone, {"op": "reset", "counters": [counter]}, {"op": "peek", "counters": [counter]})
    assert wrong["error"]["status"] == 401
    assert valid["counters"][0]["remaining"] == 4


# -- a service whose own store fails ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceHere]:
    service = ServiceHere(tmp_path_factory.mktemp("here"), RULES)
    yield service
    service.close()


@pytest.mark.parametrize(("policy", "allowed"), [("open", True), ("closed", False), ("local", True)])
def test_failure_policy_of_the_service_applies_to_its_clients(
    local_service: ServiceHere, policy: OnStoreError, allowed: bool
) -> None:
    reason = {"open": "fail_open", "closed": "fail_closed", "local": "fallback"}[policy]
    flaky = Flaky()
    with Limiter(local_service.on(flaky, policy)) as limiter:
        held = limiter.reserve("user:1", "pair", cost=1)
        flaky.broken = True
        for decision in (
            limiter.check("user:1", "pair"),
            limiter.check("user:1", ["pair", "9/day"]),
            limiter.check_request(RequestContext(user="1")),
        ):
            assert (decision.allowed, decision.reason) == (allowed, reason)
            assert len(decision.parts) >= 1, "the service returns the limits, which are known"
        if allowed:
            with limiter.reserve("user:1", "pair") as taken:
                taken.settle(0)  # no store has charged it, so nothing is sent
        held.settle(0)  # lost
        assert limiter.store_failures == 1
        with pytest.raises(StoreError, match="the store at nowhere does not answer"):
            limiter.reset("user:1", "pair")
        flaky.broken = False
        assert [part.remaining for part in limiter.peek("user:1", "pair").parts] == [4, 2], "nothing was given back"


def test_failures_are_separate_for_each_operation(local_service: ServiceHere) -> None:
    """Checks, settlements and resets of many callers share one batch, and each has its own result."""
    flaky = Flaky()

    async def main() -> None:
        async with AsyncLimiter(local_service.on(flaky)) as limiter:
            async with limiter.reserve("user:1", "pair", cost=2) as held:
                flaky.broken = True
                calls = [limiter.check("user:1", "pair"), held.settle(1), limiter.check("user:2", "5/day")]
                calls += [limiter.reset("user:1", "pair"), limiter.check("user:3", "5/day")]
                results = await asyncio.gather(*calls, return_exceptions=True)
            assert [getattr(entry, "reason", None) for entry in results] == [
                "fail_open",
                None,
                "fail_open",
                None,
                "fail_open",
            ]
            assert results[1] == (False, False)
            assert isinstance(results[3], StoreError)

    asyncio.run(main())
