"""`/ratelimiter/…`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crestgate.service.observability.last_uses import LastUses
from crestgate.service.observability.worker_metrics import counter_name
from crestgate.service.observability.worker_snapshots import WorkerSnapshots
from unit.service.admin.admin_client import Control, problems

DEFAULT = {"limitType": "DEFAULT", "limitName": "GLOBAL", "timeIntervalLimit": {"timeUnit": "SEC", "maxRequests": 2}}
API = {"limitType": "API", "limitName": "/web/test", "timeIntervalLimit": {"timeUnit": "HOUR", "maxRequests": 60}}
METHOD = {"limitType": "METHOD", "limitName": "PUT", "timeIntervalLimit": {"timeUnit": "MIN", "maxRequests": 10}}
EXAMPLE = {"clientId": "client123", "limits": [DEFAULT, API, METHOD]}


def limits(control: Control, client: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = control.get("/ratelimiter/client-limits", params={"clientId": client}).json()[
        "limits"
    ]
    return found


def last_requests(control: Control) -> dict[str, int | None]:
    return {one["limitType"]: one["lastRequestTimeStamp"] for one in limits(control, "client123")}


def test_documented_example(control: Control) -> None:
    answer = control.post("/ratelimiter/configure-client", EXAMPLE)
    assert (answer.status_code, answer.json()["status"]) == (200, "SUCCESS")
    control.check(client="client123", path="/web/test", method="PUT")
    by_name = {(one["limitType"], one["limitName"]): one for one in limits(control, "client123")}
    assert {name: (one["availablePermits"], one["maxPermits"]) for name, one in by_name.items()} == {
        ("DEFAULT", "GLOBAL"): (1, 2),
        ("API", "/web/test"): (59, 60),
        ("METHOD", "PUT"): (9, 10),
    }
    assert by_name["API", "/web/test"]["timeIntervalLimit"] == API["timeIntervalLimit"]
    (listed,) = control.get("/ratelimiter/configured-limits").json()
    assert listed["clientId"] == "client123"
    assert sorted(listed["limits"], key=str) == sorted(EXAMPLE["limits"], key=str)


def test_last_request_time_of_each_limit(control: Control) -> None:
    control.post("/ratelimiter/configure-client", EXAMPLE)
    assert last_requests(control) == {"API": None, "DEFAULT": None, "METHOD": None}
    control.parts.metrics.clients.record("client123", 1_900_000_000_000_000)
    assert last_requests(control) == {"API": None, "DEFAULT": None, "METHOD": None}, (
        "the client was seen, but no limit was used"
    )
    rules = control.parts.catalog.current
    counters = {entry.rule.name.split()[0]: entry.counter for entry in rules.clients["client123"]}
    control.parts.metrics.record_use(counters["METHOD"], "client:client123", 1_700_000_000_123_456)
    control.parts.metrics.record_use(counters["METHOD"], "client:another", 1_900_000_000_000_000)
    control.parts.metrics.record_use(counters["DEFAULT"], "client:client123", 1_800_000_000_000_999)
    expected = {"API": None, "DEFAULT": 1_800_000_000_000, "METHOD": 1_700_000_000_123}
    assert last_requests(control) == expected
    assert last_requests(control) == expected, "reading changes nothing"


def test_last_request_times_are_shared_by_workers_and_survive_a_restart(control: Control, tmp_path: Path) -> None:
    control.post("/ratelimiter/configure-client", {"clientId": "client123", "limits": [DEFAULT]})
    (entry,) = control.parts.catalog.current.clients["client123"]
    counter = counter_name(entry.counter, "client:client123")
    neighbour = LastUses(WorkerSnapshots(tmp_path / "notifier", 1), control.parts.history)
    neighbour.publish({counter: 1_700_000_000_000_000})
    assert neighbour.find([counter]) == [1_700_000_000_000_000]
    neighbour.record()
    assert last_requests(control) == {"DEFAULT": 1_700_000_000_000}, "from the history, which outlives a node"
    other = LastUses(WorkerSnapshots(control.snapshots_folder, 7), control.parts.history)
    other.publish({counter: 1_700_000_001_000_000})
    assert last_requests(control) == {"DEFAULT": 1_700_000_001_000}, "from another worker's file"
    successor = LastUses(WorkerSnapshots(control.snapshots_folder, 7), control.parts.history)
    successor.publish({counter_name("another", "client:x"): 1})
    assert last_requests(control) == {"DEFAULT": 1_700_000_001_000}, "its successor continues from it"


def test_limits_are_listed_by_type_and_name(control: Control) -> None:
    several = [{**API, "limitName": name} for name in ("/z", "/a", "getUsers")]
    control.post("/ratelimiter/configure-client", {"clientId": "client123", "limits": [METHOD, DEFAULT, *several]})
    control.post("/ratelimiter/configure-client", {"clientId": "client123", "limits": [{**METHOD, "limitName": "GET"}]})
    names = [
        ("API", "/a"),
        ("API", "/z"),
        ("API", "getUsers"),
        ("DEFAULT", "GLOBAL"),
        ("METHOD", "GET"),
        ("METHOD", "PUT"),
    ]
    (listed,) = control.get("/ratelimiter/configured-limits").json()
    for found in (limits(control, "client123"), listed["limits"]):
        assert [(one["limitType"], one["limitName"]) for one in found] == names


def test_client_is_identified_by_its_counters(control_with: Callable[..., Control]) -> None:
    control = control_with("default_client_limits: [5/minute]")
    assert control.get("/ratelimiter/client-limits?clientId=new").status_code == 404
    control.check(client="new")  # through another worker, which has not published it yet
    assert [one["availablePermits"] for one in limits(control, "new")] == [4]


def test_configuring_again_changes_only_the_named_limits(control: Control) -> None:
    control.post("/ratelimiter/configure-client", EXAMPLE)
    more = {**DEFAULT, "timeIntervalLimit": {"timeUnit": "DAY", "maxRequests": 5}}
    control.post("/ratelimiter/configure-client", {"clientId": "client123", "limits": [more]})
    permits = {(one["limitType"], one["maxPermits"]) for one in limits(control, "client123")}
    assert permits == {("DEFAULT", 5), ("API", 60), ("METHOD", 10)}


def test_limits_are_deleted(control: Control) -> None:
    control.post("/ratelimiter/configure-client", EXAMPLE)
    body = {"clientId": "client123", "limits": [{"limitType": "DEFAULT"}, {"limitType": "method", "limitName": "put"}]}
    answer = control.delete("/ratelimiter/delete-limits", body)
    assert (answer.status_code, answer.json()["status"]) == (200, "SUCCESS")
    assert [one["limitType"] for one in limits(control, "client123")] == ["API"]
    both = {
        "clientId": "client123",
        "limits": [{"limitType": "API", "limitName": "/web/test"}, {"limitType": "DEFAULT"}],
    }
    missing = control.delete("/ratelimiter/delete-limits", both)
    assert missing.status_code == 404
    assert missing.json()["detail"] == "client 'client123' has no limit DEFAULT GLOBAL"
    assert [one["limitType"] for one in limits(control, "client123")] == ["API"], "none was deleted"


def test_client_is_deleted(control: Control) -> None:
    control.post("/ratelimiter/configure-client", EXAMPLE)
    assert control.delete("/ratelimiter/delete-client?clientId=client123").json()["status"] == "SUCCESS"
    again = control.delete("/ratelimiter/delete-client?clientId=client123")
    assert again.status_code == 404
    assert control.get("/ratelimiter/configured-limits").json() == []
    unknown = control.get("/ratelimiter/client-limits?clientId=client123")
    assert unknown.status_code == 404
    assert unknown.json()["detail"] == "client 'client123' is not configured, and was not seen recently"


def test_unconfigured_client_has_the_default_limits(control_with: Callable[..., Control]) -> None:
    control = control_with("default_client_limits: [5/minute, 7 per 90 seconds]")
    control.parts.metrics.clients.record("new", 2_000)
    control.check(client="new")
    for entry in control.parts.catalog.current.default_clients:
        control.parts.metrics.record_use(entry.counter, "client:new", 2_000)
    assert limits(control, "new") == [
        {
            "limitType": "DEFAULT",
            "limitName": "GLOBAL",
            "timeIntervalLimit": interval,
            "availablePermits": left,
            "maxPermits": most,
            "lastRequestTimeStamp": 2,
        }
        for interval, left, most in (({"timeUnit": "MIN", "maxRequests": 5}, 4, 5), (None, 6, 7))
    ]
    assert control.get("/ratelimiter/configured-limits").json() == []


def test_configured_clients_are_paged(control: Control) -> None:
    for client in ("b", "a&", "c"):
        control.post("/ratelimiter/configure-client", {"clientId": client, "limits": [DEFAULT]})
    first = control.get("/ratelimiter/configured-limits?limit=1")
    assert [one["clientId"] for one in first.json()] == ["a&"]
    assert first.headers["link"] == '</ratelimiter/configured-limits?limit=1&after=a%26>; rel="next"'


def test_competing_limits_of_one_api_are_a_conflict(control: Control) -> None:
    rule = {"rule_id": "r", "dimension": "client", "identifier": "c", "limit": 5, "window_seconds": 1}
    control.post("/api/v1/rules", rule)
    answer = control.post("/ratelimiter/configure-client", {"clientId": "c", "limits": [DEFAULT]})
    assert answer.status_code == 409
    assert control.get("/ratelimiter/configured-limits").json() == [], "other rules are not listed as client limits"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"clientId", "limits"}),
        ({"clientId": "c", "limits": []}, {"limits"}),
        ({"clientId": "c", "limits": {}}, {"limits"}),
        ({"clientId": "*", "limits": [DEFAULT]}, {"clientId"}),
        ({"clientId": 5, "limits": [DEFAULT]}, {"clientId"}),
        ({"clientId": "c", "limits": [DEFAULT, DEFAULT]}, {"limits[1]"}),
        ({"clientId": "c", "limits": [{**DEFAULT, "limitName": "x"}, {**API, "limitName": None},
                                      {**METHOD, "timeIntervalLimit": {"timeUnit": "WEEK", "maxRequests": "5"}}]},
         {"limits[0].limitName", "limits[1].limitName", "limits[2].timeIntervalLimit.timeUnit",
          "limits[2].timeIntervalLimit.maxRequests"}),
        ({"clientId": "c", "limits": [{}]}, {"limits[0].limitType", "limits[0].timeIntervalLimit"}),
        ({"clientId": "c", "limits": [5]}, {"limits[0]"}),
        ([], {""}),
    ],
)  # fmt: skip
def test_invalid_clients_are_refused(control: Control, body: Any, fields: set[str]) -> None:
    assert set(problems(control.post("/ratelimiter/configure-client", body))) == fields


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"clientId", "limits"}),
        ({"clientId": "c", "limits": []}, {"limits"}),
        ({"clientId": "c", "limits": "x"}, {"limits"}),
        ({"clientId": "c", "limits": [{}]}, {"limits[0].limitType", "limits[0].limitName"}),
        ({"clientId": "c", "limits": [{"limitType": "API"}]}, {"limits[0].limitName"}),
        ({"clientId": "c", "limits": [{"limitType": "ALL", "limitName": "x"}]}, {"limits[0].limitType"}),
        ({"clientId": "c", "limits": [DEFAULT]}, {"limits[0].timeIntervalLimit"}),
        ({"clientId": "c", "limits": [5]}, {"limits[0]"}),
    ],
)
def test_invalid_limit_names_are_refused(control: Control, body: Any, fields: set[str]) -> None:
    assert set(problems(control.delete("/ratelimiter/delete-limits", body))) == fields


@pytest.mark.parametrize("query", ["", "?clientId=", "?clientid=c"])
def test_client_id_is_required(control: Control, query: str) -> None:
    assert "clientId" in problems(control.get(f"/ratelimiter/client-limits{query}"))
    assert "clientId" in problems(control.delete(f"/ratelimiter/delete-client{query}"))


def test_clients_from_files_are_read_only(control_with: Callable[..., Control]) -> None:
    limit = "{limitType: DEFAULT, timeIntervalLimit: {timeUnit: MIN, maxRequests: 5}}"
    control = control_with(f"clients: [{{clientId: filed, limits: [{limit}]}}]")
    assert limits(control, "filed")[0]["maxPermits"] == 5
    for refused in (
        control.delete("/ratelimiter/delete-client?clientId=filed"),
        control.delete("/ratelimiter/delete-limits", {"clientId": "filed", "limits": [{"limitType": "DEFAULT"}]}),
    ):
        assert refused.status_code == 409
        assert "defined in a file" in refused.json()["detail"]
