"""`/api/v1/rules`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from unit.service.admin.admin_client import Control, problems

ORDERS = {"name": "Orders per user", "dimension": "USER", "limit": 100, "window_seconds": 60}
FILE = "rules: [{rule_id: filed, dimension: ip, limit: 5, window_seconds: 1}]"


def test_rule_is_created_read_and_deleted(control: Control) -> None:
    created = control.post("/api/v1/rules", ORDERS)
    assert created.status_code == 201
    assert created.headers["location"] == "/api/v1/rules/orders-per-user"
    assert created.headers["etag"] == '"1"'
    rule = created.json()
    assert (rule["rule_id"], rule["dimension"], rule["algorithm"]) == (
        "orders-per-user",
        "user",
        "sliding_window_counter",
    )
    response = control.get(created.headers["location"])
    assert response.json() == rule
    assert response.headers["etag"] == '"1"'
    assert control.delete(created.headers["location"]).status_code == 204
    missing = control.get(created.headers["location"])
    assert missing.status_code == 404
    assert missing.json()["detail"] == "there is no rule 'orders-per-user'"
    assert control.actions() == ["create rule:orders-per-user", "delete rule:orders-per-user"]


def test_write_is_in_force_immediately_and_audited_with_its_key(control: Control) -> None:
    control.post("/api/v1/rules", {**ORDERS, "limit": 1})
    assert [control.check(user="bob").allowed for _ in range(2)] == [True, False]
    (entry,) = control.get("/api/v1/audit").json()["entries"]
    assert (entry["actor"], entry["address"]) == ("key:ops", "10.1.2.3")


def test_writes_of_another_worker_are_read_immediately(control: Control) -> None:
    from crestgate.rules.editor import Editor
    from crestgate.rules.port import Actor
    from crestgate.rules.rule import Rule

    Editor(control.repository, Actor("other")).create(Rule.read(ORDERS))
    assert control.get("/api/v1/rules/orders-per-user").status_code == 200
    assert [rule["rule_id"] for rule in control.get("/api/v1/rules").json()["rules"]] == ["orders-per-user"]


def test_rule_with_a_lease(control: Control) -> None:
    leased = {**ORDERS, "algorithm": "fixed_window", "lease": True}
    created = control.post("/api/v1/rules", leased)
    assert created.status_code == 201
    assert created.json()["lease"] is True
    changed = control.put("/api/v1/rules/orders-per-user", {**leased, "lease": False})
    assert "lease" not in changed.json()
    assert control.put("/api/v1/rules/orders-per-user", leased).json()["lease"] is True
    refused = control.post("/api/v1/rules", {**ORDERS, "rule_id": "other", "tier": "gold", "lease": True})
    assert refused.status_code == 400
    message = problems(refused)["lease"]
    assert message.startswith("is not possible with sliding_window_counter, the default of rules: ")
    assert message.endswith("write algorithm: with one of token_bucket, fixed_window, gcra")


def test_rules_are_paged_in_order(control: Control) -> None:
    for number in (3, 1, 2):
        control.post("/api/v1/rules", {**ORDERS, "rule_id": f"r{number}", "identifier": str(number)})
    first = control.get("/api/v1/rules?limit=2").json()
    assert ([rule["rule_id"] for rule in first["rules"]], first["next"]) == (["r1", "r2"], "r2")
    second = control.get("/api/v1/rules", params={"limit": 2, "after": first["next"]}).json()
    assert ([rule["rule_id"] for rule in second["rules"]], second["next"]) == (["r3"], None)
    assert control.get("/api/v1/rules?limit=3").json()["next"] is None


def test_rules_are_filtered(control: Control) -> None:
    control.post("/api/v1/rules", {**ORDERS, "rule_id": "a"})
    control.post("/api/v1/rules", {**ORDERS, "rule_id": "b", "tier": "gold"})
    control.post("/api/v1/rules", {**ORDERS, "rule_id": "c", "identifier": "bob", "mode": "shadow"})
    control.post("/api/v1/rules", {**ORDERS, "rule_id": "d", "dimension": "apikey"})

    def ids(query: str) -> list[str]:
        return [rule["rule_id"] for rule in control.get(f"/api/v1/rules?{query}").json()["rules"]]

    assert ids("tier=gold") == ["b"]
    assert ids("identifier=bob") == ["c"]
    assert ids("mode=SHADOW") == ["c"]
    assert ids("dimension=API_KEY") == ["d"]
    assert ids("dimension=user&identifier=*&tier=*&limit=1") == ["a"]
    assert ids("dimension=nothing") == []


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "many", "1.5", ""])
def test_page_size_is_bounded(control: Control, limit: str) -> None:
    assert set(problems(control.get(f"/api/v1/rules?limit={limit}"))) == {"limit"}


def test_unknown_parameters_are_refused(control: Control) -> None:
    assert problems(control.get("/api/v1/rules?limt=5")) == {"limt": "there is no such parameter"}


def test_all_errors_are_reported_together(control: Control) -> None:
    body = {"name": "x", "dimension": "usr", "limit": "5", "window_seconds": True, "metod": "GET", "burst": 1.0}
    assert problems(control.post("/api/v1/rules", body)) == {
        "metod": "unknown field: did you mean 'method'?",
        "dimension": "must be one of user, apikey, client, ip, key, api, global, not 'usr'; did you mean 'user'?",
        "limit": "must be a whole number, 0 or more, not '5': write 5",
        "window_seconds": "must be a number of seconds above 0, not true",
        "burst": "must be a whole number, 1 or more, not 1.0",
    }
    assert control.actions() == []


def test_existing_rule_is_a_conflict(control: Control) -> None:
    control.post("/api/v1/rules", ORDERS)
    again = control.post("/api/v1/rules", ORDERS)
    assert again.status_code == 409
    assert "already exists" in again.json()["detail"]
    competing = control.post("/api/v1/rules", {**ORDERS, "rule_id": "rival"})
    assert competing.status_code == 409
    assert "as specific as rule 'orders-per-user'" in competing.json()["detail"]


def test_rule_is_replaced(control: Control) -> None:
    control.post("/api/v1/rules", {**ORDERS, "tier": "gold", "limit": 10})
    written = control.put("/api/v1/rules/orders-per-user", {**ORDERS, "limit": 500})
    assert written.status_code == 200
    assert written.headers["etag"] == '"2"'
    rule = written.json()
    assert (rule["limit"], rule["tier"], rule["version"]) == (500, "*", 2)
    assert rule == control.get("/api/v1/rules/orders-per-user").json()


def test_rule_as_read_can_be_written(control: Control) -> None:
    rule = control.post("/api/v1/rules", ORDERS).json()
    written = control.put("/api/v1/rules/orders-per-user", {**rule, "limit": 7}).json()
    assert {**written, "limit": 100, "version": 1, "updated_at": rule["updated_at"]} == rule


def test_rule_is_identified_by_its_path(control: Control) -> None:
    control.post("/api/v1/rules", ORDERS)
    wrong = control.put("/api/v1/rules/orders-per-user", {**ORDERS, "rule_id": "other"})
    assert problems(wrong) == {"rule_id": "must be that of the path, 'orders-per-user': leave it out"}
    assert control.put("/api/v1/rules/orders-per-user", {**ORDERS, "rule_id": "orders-per-user"}).status_code == 200


@pytest.mark.parametrize("tag", ['"1"', "1", 'W/"1"', "*", '"7", "1"'])
def test_matching_version_is_accepted(control: Control, tag: str) -> None:
    control.post("/api/v1/rules", ORDERS)
    written = control.put("/api/v1/rules/orders-per-user", ORDERS, headers={"If-Match": tag})
    assert (written.status_code, written.json()["version"]) == (200, 2)
    control.put("/api/v1/rules/orders-per-user", ORDERS)
    stale = '"2"' if tag != "*" else tag
    assert control.delete("/api/v1/rules/orders-per-user", headers={"If-Match": stale}).status_code == (
        204 if tag == "*" else 412
    )


@pytest.mark.parametrize("tag", ['"2"', "0", 'W/"9"', '"x"', "", "**"])
def test_stale_version_is_refused(control: Control, tag: str) -> None:
    control.post("/api/v1/rules", ORDERS)
    for stale in (
        control.put("/api/v1/rules/orders-per-user", {**ORDERS, "limit": 1}, headers={"If-Match": tag}),
        control.delete("/api/v1/rules/orders-per-user", headers={"If-Match": tag}),
    ):
        assert stale.status_code == 412
        assert "is at version 1" in stale.json()["detail"]
    assert control.get("/api/v1/rules/orders-per-user").json()["limit"] == 100


@pytest.mark.parametrize("headers", [{}, {"If-Match": '"1"'}, {"If-Match": "*"}])
def test_missing_rule_is_not_found(control: Control, headers: dict[str, str]) -> None:
    assert control.put("/api/v1/rules/nothing", ORDERS, headers=headers).status_code == 404
    assert control.delete("/api/v1/rules/nothing", headers=headers).status_code == 404


def test_ids_with_special_characters(control: Control) -> None:
    rule_id = "client:a%3Ab:API:/web/test?x#y ü"
    created = control.post("/api/v1/rules", {**ORDERS, "rule_id": rule_id})
    location = created.headers["location"]
    assert location == "/api/v1/rules/client%3Aa%253Ab%3AAPI%3A%2Fweb%2Ftest%3Fx%23y%20%C3%BC"
    assert control.get(location).json()["rule_id"] == rule_id
    assert control.put(location, ORDERS).json()["rule_id"] == rule_id
    assert control.delete(location).status_code == 204


def test_rules_from_files_are_read_only(control_with: Callable[..., Control]) -> None:
    control = control_with(FILE)
    rule = control.get("/api/v1/rules/filed").json()
    assert (rule["limit"], rule["created_at"]) == (5, None)
    body: dict[str, Any] = {"dimension": "ip", "limit": 50, "window_seconds": 1}
    for refused in (
        control.put("/api/v1/rules/filed", body),
        control.delete("/api/v1/rules/filed"),
        control.post("/api/v1/rules", {**body, "rule_id": "filed"}),
    ):
        assert refused.status_code == 409
        assert "defined in a file" in refused.json()["detail"]
    assert control.get("/api/v1/rules/filed").json() == rule


def test_store_of_a_rule_must_exist(control: Control) -> None:
    rule = {"rule_id": "hot", "dimension": "user", "limit": 1, "window_seconds": 60, "store": "hot"}
    response = control.post("/api/v1/rules", json=rule)
    message = "there is no store 'hot': add it under stores in the settings, as stores: {hot: redis://host:6379/0}"
    assert problems(response) == {"store": message}
    del rule["store"]
    assert control.post("/api/v1/rules", json=rule).status_code == 201
    assert control.put("/api/v1/rules/hot", json={**rule, "store": "hot"}).status_code == 400
    assert "store" not in control.get("/api/v1/rules/hot").json()
