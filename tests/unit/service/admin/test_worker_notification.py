"""Every write through the admin API takes effect in its worker and notifies the other workers once."""

from __future__ import annotations

from typing import Any

import pytest

from unit.service.admin.admin_client import Control

RULE = {"rule_id": "orders", "dimension": "user", "limit": 10, "window_seconds": 60}
POLICY = {"key": "k", "capacity": 5}
LIMIT = {"limitType": "DEFAULT", "timeIntervalLimit": {"timeUnit": "MIN", "maxRequests": 5}}
CLIENT = {"clientId": "acme", "limits": [LIMIT]}
NAMES = {"clientId": "acme", "limits": [{"limitType": "DEFAULT", "limitName": "GLOBAL"}]}
OVERRIDE = {"rule_id": "orders", "limit": 5, "duration_seconds": 60}


@pytest.mark.parametrize(
    ("first", "method", "path", "body"),
    [
        ([], "POST", "/api/v1/rules", RULE),
        ([("/api/v1/rules", RULE)], "PUT", "/api/v1/rules/orders", {**RULE, "limit": 20}),
        ([("/api/v1/rules", RULE)], "DELETE", "/api/v1/rules/orders", None),
        ([], "POST", "/api/v1/plans", {"name": "gold", "limits": "5/second"}),
        ([("/api/v1/plans", {"name": "gold", "limits": "5/second"})], "DELETE", "/api/v1/plans/gold", None),
        ([], "PUT", "/api/v1/users/bob/tier", {"tier": "gold"}),
        ([("/api/v1/rules", RULE)], "POST", "/api/v1/users/bob/override", OVERRIDE),
        ([], "POST", "/admin/policies", POLICY),
        ([("/admin/policies", POLICY)], "PUT", "/admin/policies/k", {"capacity": 7}),
        ([("/admin/policies", POLICY)], "DELETE", "/admin/policies/k", None),
        ([], "POST", "/ratelimiter/configure-client", CLIENT),
        ([("/ratelimiter/configure-client", CLIENT)], "DELETE", "/ratelimiter/delete-limits", NAMES),
        ([("/ratelimiter/configure-client", CLIENT)], "DELETE", "/ratelimiter/delete-client?clientId=acme", None),
    ],
)
def test_write_notifies_the_other_workers(
    control: Control, first: list[tuple[str, Any]], method: str, path: str, body: Any
) -> None:
    for earlier, setup in first:
        control.post(earlier, setup)
    before, rules = control.notified, control.parts.catalog.current
    assert control.call(method, path, body).status_code < 300
    assert control.notified == before + 1
    assert control.parts.catalog.current is not rules


def test_reads_and_refused_writes_do_not_notify(control: Control) -> None:
    control.get("/api/v1/rules")
    assert control.post("/api/v1/rules", {**RULE, "limit": -1}).status_code == 400
    assert control.delete("/api/v1/rules/nothing").status_code == 404
    assert control.put("/api/v1/users/bob/tier", {"tier": None}).status_code == 200, "there was none to delete"
    assert control.notified == 0
