"""Changed rules on recent traffic: what the report has, API keys as digests, one at a time."""

from __future__ import annotations

from typing import Any

from crestgate.core.context import RequestContext
from crestgate.service.admin.simulate import ONE_AT_A_TIME
from unit.service.admin.admin_client import Control

PER_USER = {"rule_id": "per-user", "dimension": "user", "limit": 3, "window_seconds": 60, "algorithm": "fixed_window"}
BY_KEY = {"rule_id": "gold", "dimension": "apikey", "identifier": "secret", "limit": 1, "window_seconds": 60}


def record(control: Control, count: int, **context: Any) -> None:
    assert control.parts.traffic is not None
    for _ in range(count):
        control.parts.traffic.record(RequestContext(**context), 1, control.clock.ticks())


def test_changed_rule_is_compared_with_the_one_in_force(control: Control) -> None:
    assert control.post("/api/v1/rules", PER_USER).status_code == 201
    record(control, 5, user="a")
    record(control, 2, user="b")
    report = control.post("/api/v1/simulate", {"rules": [{**PER_USER, "limit": 1}]}).json()
    assert (report["requests"], report["denied"], report["share_recorded"]) == (7, 5, 1.0)
    against = report["against"]
    assert (against["denied"], against["newly_denied"], against["newly_allowed"]) == (2, 3, 0)
    assert [(one["subject"], one["newly_denied"]) for one in report["subjects"]] == [("user:a", 2), ("user:b", 1)]
    removed = control.post("/api/v1/simulate", {"rules": [{**PER_USER, "mode": "disabled"}]}).json()
    assert (removed["denied"], removed["against"]["newly_allowed"]) == (0, 2)
    assert control.get("/api/v1/rules/per-user").json()["limit"] == 3, "nothing was changed"


def test_older_traffic_is_left_out(control: Control) -> None:
    record(control, 1, user="a")
    control.clock.advance(600)
    record(control, 1, user="a")
    assert control.post("/api/v1/simulate", {"rules": [], "minutes": 5}).json()["requests"] == 1


def test_rule_for_one_api_key_applies_without_the_key(control: Control) -> None:
    record(control, 3, api_key="secret")
    record(control, 3, api_key="other")
    response = control.post("/api/v1/simulate", {"rules": [BY_KEY]})
    assert response.json()["denied"] == 2
    assert response.json()["subjects"][0]["subject"].startswith("apikey:sha256:")
    assert "secret" not in response.text


def test_one_simulation_at_a_time(control: Control) -> None:
    with ONE_AT_A_TIME:
        response = control.post("/api/v1/simulate", {"rules": []})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert control.post("/api/v1/simulate", {"rules": []}).status_code == 200
