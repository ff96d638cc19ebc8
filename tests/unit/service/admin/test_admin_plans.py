"""`/api/v1/plans`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from unit.service.admin.admin_client import Control, problems


def test_plan_is_created_changed_and_deleted(control: Control) -> None:
    created = control.post("/api/v1/plans", {"name": "gold", "limits": "10/second burst 20"})
    assert created.status_code == 201
    assert created.headers["location"] == "/api/v1/plans/gold"
    assert created.json() == {"name": "gold", "limits": ["10/second burst 20"]}
    assert control.runner.run(control.parts.limiter.check("k", "gold")).limit == 20, "in force immediately"
    changed = control.put("/api/v1/plans/gold", {"limits": ["5/s", "5000/day; 100000/month"]})
    assert changed.json() == {"name": "gold", "limits": ["5/second", "5000/day", "100000/month"]}
    assert control.get("/api/v1/plans/gold").json() == changed.json()
    assert control.delete("/api/v1/plans/gold").status_code == 204
    assert control.actions() == ["create plan:gold", "update plan:gold", "delete plan:gold"]


def test_plan_with_leases(control: Control) -> None:
    created = control.post("/api/v1/plans", {"name": "hot", "limits": "10/second", "lease": True})
    assert created.json() == {"name": "hot", "limits": ["10/second"], "lease": True}
    assert control.get("/api/v1/plans").json()["plans"] == [created.json()]
    changed = control.put("/api/v1/plans/hot", {"limits": "10/second"})
    assert changed.json() == {"name": "hot", "limits": ["10/second"]}, "what is left out has its default"
    assert control.put("/api/v1/plans/hot", {"limits": "9/second", "lease": True}).json()["lease"] is True
    message = problems(control.put("/api/v1/plans/hot", {"limits": "5 concurrent", "lease": True}))["lease"]
    assert message == ("is not possible with concurrency: leave it out, or use one of token_bucket, fixed_window, gcra")


def test_plans_are_paged(control: Control) -> None:
    for name in ("b", "c", "a/b"):
        control.post("/api/v1/plans", {"name": name, "limits": "1/s"})
    first = control.get("/api/v1/plans?limit=2").json()
    assert ([plan["name"] for plan in first["plans"]], first["next"]) == (["a/b", "b"], "b")
    second = control.get("/api/v1/plans?limit=2&after=b").json()
    assert ([plan["name"] for plan in second["plans"]], second["next"]) == (["c"], None)
    assert control.get("/api/v1/plans/a%2Fb").json()["name"] == "a/b"


def test_existing_and_missing_plans(control: Control) -> None:
    control.post("/api/v1/plans", {"name": "gold", "limits": "1/s"})
    assert control.post("/api/v1/plans", {"name": "gold", "limits": "2/s"}).status_code == 409
    assert control.get("/api/v1/plans/lead").status_code == 404
    assert control.put("/api/v1/plans/lead", {"limits": "1/s"}).status_code == 404
    assert control.delete("/api/v1/plans/lead").status_code == 404
    assert control.get("/api/v1/plans/gold").json()["limits"] == ["1/second"]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"name", "limits"}),
        ({"name": "x", "limits": "5/fortnight"}, {"limits"}),
        ({"name": "x", "limits": []}, {"limits"}),
        ({"name": "x", "limits": [5]}, {"limits"}),
        ({"name": "x", "limits": 5}, {"limits"}),
        ({"name": "x", "limits": {"a": "1/s"}}, {"limits"}),
        ({"name": 5, "limits": "1/s"}, {"name"}),
        ({"name": "", "limits": "1/s"}, {"name"}),
        ({"name": "x#2", "limits": "1/s"}, {"name"}),
        ({"name": "rule|x", "limits": "1/s"}, {"name"}),
        ({"name": "x", "limit": "1/s"}, {"limit", "limits"}),
        ([], {""}),
        ({"name": "x", "limits": "1/s", "lease": "yes"}, {"lease"}),
        ({"name": "x", "limits": ["1/s", "1/day using leaky_bucket"], "lease": True}, {"lease"}),
    ],
)
def test_invalid_plans_are_refused(control: Control, body: Any, fields: set[str]) -> None:
    assert set(problems(control.post("/api/v1/plans", body))) == fields


def test_invalid_limit_error_is_one_line_with_the_plan(control: Control) -> None:
    for answer in (
        control.post("/api/v1/plans", {"name": "bad", "limits": "lots"}),
        control.put("/api/v1/plans/bad", {"limits": ["1/s", "lots"]}),
    ):
        message = problems(answer)["limits"]
        assert message.startswith("plan 'bad': cannot read limit 'lots': ")
        assert answer.json()["detail"] == f"limits: {message}"
        assert "\n" not in message
        assert "^" not in message


def test_plan_is_identified_by_its_path(control: Control) -> None:
    control.post("/api/v1/plans", {"name": "gold", "limits": "1/s"})
    assert set(problems(control.put("/api/v1/plans/gold", {"name": "lead", "limits": "1/s"}))) == {"name"}
    assert control.put("/api/v1/plans/gold", {"name": "gold", "limits": "2/s"}).status_code == 200


def test_plans_from_files_are_read_only(control_with: Callable[..., Control]) -> None:
    control = control_with("plans: {gold: 1/s}")
    assert control.get("/api/v1/plans").json()["plans"] == [{"name": "gold", "limits": ["1/second"]}]
    for refused in (
        control.post("/api/v1/plans", {"name": "gold", "limits": "2/s"}),
        control.put("/api/v1/plans/gold", {"limits": "2/s"}),
        control.delete("/api/v1/plans/gold"),
    ):
        assert refused.status_code == 409
        assert "defined in a file" in refused.json()["detail"]
