"""`/api/v1/audit` and `/api/v1/stats`."""

from __future__ import annotations

import pytest

from crestgate.rules.port import Actor
from unit.service.admin.admin_client import Control, problems

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
PLAN = {"name": "gold", "limits": "1/s"}

# -- audit ----------------------------------------------------------------------------------------------------------


def test_entry_has_all_fields(control: Control) -> None:
    control.post("/api/v1/plans", PLAN)
    control.put("/api/v1/plans/gold", {"limits": "2/s"})
    newest, oldest = control.get("/api/v1/audit").json()["entries"]
    assert newest.pop("at") >= oldest.pop("at") > "2026"
    assert newest.pop("id") != oldest.pop("id")
    assert oldest == {
        "actor": "key:ops",
        "address": "10.1.2.3",
        "action": "create",
        "subject": "plan:gold",
        "before": None,
        "after": {"limits": ["1/second"]},
    }
    assert (newest["action"], newest["before"], newest["after"]) == (
        "update",
        oldest["after"],
        {"limits": ["2/second"]},
    )


def test_entries_are_filtered_and_paged(control: Control) -> None:
    for name in "abc":
        control.post("/api/v1/plans", {**PLAN, "name": name})
    control.repository.note(Actor("bob"), "reset", "user:1")

    def subjects(query: str) -> list[str]:
        return [entry["subject"] for entry in control.get(f"/api/v1/audit?{query}").json()["entries"]]

    assert subjects("actor=bob") == ["user:1"]
    assert subjects("subject=plan:b") == ["plan:b"]
    assert subjects("actor=key:ops&subject=user:1") == []
    first = control.get("/api/v1/audit?limit=3").json()
    assert [entry["subject"] for entry in first["entries"]] == ["user:1", "plan:c", "plan:b"]
    second = control.get("/api/v1/audit", params={"limit": 3, "before": first["next"]}).json()
    assert ([entry["subject"] for entry in second["entries"]], second["next"]) == (["plan:a"], None)
    assert control.get("/api/v1/audit?limit=4").json()["next"] is None


def test_entries_are_filtered_by_time(control: Control) -> None:
    control.post("/api/v1/plans", PLAN)
    (entry,) = control.get("/api/v1/audit").json()["entries"]

    def count(**params: str) -> int:
        return len(control.get("/api/v1/audit", params=params).json()["entries"])

    assert count(since=entry["at"]) == 1, "since is inclusive"
    assert count(until=entry["at"]) == 0, "until is exclusive"
    assert count(since="1700000000", until="253402300799") == 1
    assert count(since="1.5", until="2020-01-01T00:00:00+01:00") == 0
    assert len(control.get("/api/v1/audit?since=2020-01-01T00:00:00+01:00").json()["entries"]) == 1, "a bare +"


@pytest.mark.parametrize(
    "timestamp", ["yesterday", "2026-01-01", "2026-01-01T00:00:00", "-1", "nan", "inf", "1e300", ""]
)
def test_invalid_timestamps_are_refused(control: Control, timestamp: str) -> None:
    both = control.get("/api/v1/audit", params={"since": timestamp, "until": timestamp})
    assert set(problems(both)) == {"since", "until"}


@pytest.mark.parametrize("before", ["x", "-1", "9" * 50, "1.5", ""])
def test_invalid_cursors_are_refused(control: Control, before: str) -> None:
    control.post("/api/v1/plans", PLAN)
    assert set(problems(control.get("/api/v1/audit", params={"before": before}))) == {"before"}


# -- statistics -----------------------------------------------------------------------------------------------------


def test_usage_over_time(control: Control) -> None:
    now_us = control.clock.ticks() // HOUR_US * HOUR_US
    history = control.parts.history
    history.add(now_us - 2 * MINUTE_US, {"a": (5, 1, 0), "b": (1, 0, 2)}, {"user:1": (6, 1)})
    history.add(now_us - MINUTE_US, {"a": (10, 3, 0)}, {"user:1": (1, 0), "user:2": (9, 3)})
    until = str(now_us // 1_000_000)
    stats = control.get("/api/v1/stats", params={"until": until}).json()
    assert stats["totals"] == {"allowed": 16, "denied": 4, "shadowed": 2}
    counts = [(point["allowed"], point["denied"], point["shadowed"]) for point in stats["series"]]
    assert counts == [(6, 1, 2), (10, 3, 0)]
    assert [rule["rule"] for rule in stats["rules"]] == ["a", "b"]
    assert stats["top"] == [
        {"subject": "user:2", "allowed": 9, "denied": 3},
        {"subject": "user:1", "allowed": 7, "denied": 1},
    ]
    assert [one["subject"] for one in stats["top_denied"]] == ["user:2", "user:1"]
    one = control.get("/api/v1/stats", params={"until": until, "rule": "b", "top": "1", "step": "hour"}).json()
    assert (one["totals"], one["step"], one["rule"]) == ({"allowed": 1, "denied": 0, "shadowed": 2}, "hour", "b")
    assert len(one["series"]) == len(one["top"]) == 1
    assert control.get("/api/v1/stats", params={"until": until, "top": "0"}).json()["top"] == []


def test_no_usage(control: Control) -> None:
    stats = control.get("/api/v1/stats").json()
    assert stats["totals"] == {"allowed": 0, "denied": 0, "shadowed": 0}
    assert stats["series"] == stats["rules"] == stats["top"] == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("step=day", "step"),
        ("top=101", "top"),
        ("top=-1", "top"),
        ("since=now", "since"),
        ("since=10&until=10", "since"),
        ("since=20&until=10", "since"),
        ("rules=a", "rules"),
    ],
)
def test_invalid_statistics_queries_are_refused(control: Control, query: str, field: str) -> None:
    assert set(problems(control.get(f"/api/v1/stats?{query}"))) == {field}
