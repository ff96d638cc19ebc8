"""The commands for operators on the files of this folder, without a service."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crestgate.config.default_folder import read_service_file, write_service_file
from crestgate.service.observability.snapshot import Snapshot, WorkerStatus
from crestgate.service.observability.worker_snapshots import WorkerSnapshots
from unit.cli.conftest import RULES, Run
from unit.cli.fake_service import TOKEN, fake_service

KEYS = ("keys create", "keys list", "keys rotate", "keys revoke")


@pytest.fixture
def rules(run: Run, folder: Path) -> None:
    (folder / "rules.yaml").write_text(RULES)
    assert run("rules", "apply", "-f", "rules.yaml").code == 0


def data(run: Run, *words: str) -> Any:
    result = run(*words, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


@pytest.mark.usefixtures("rules")
def test_override_and_its_undo(run: Run) -> None:
    made = run("override", "acme", "orders", "500", "--for", "2h")
    assert (made.code, made.err) == (0, "")
    assert "acme: 500 per 60 s until" in made.out
    (listed,) = data(run, "override", "list", "acme")
    assert (listed["rule_id"], listed["limit"]) == ("override:acme:orders", 500)
    assert data(run, "override", "list", "other") == []
    again = run("override", "--for", "2h", "acme", "orders", "700")
    assert again.code == 0
    assert run("override", "undo", "acme", "orders").code == 0
    assert data(run, "override", "list") == []
    missing = run("override", "undo", "acme", "orders")
    assert (missing.code, missing.err) == (2, "crestgate: user 'acme' has no override of rule 'orders'\n")
    actions = [entry["action"] for entry in data(run, "audit", "--subject", "rule:override:acme:orders")]
    assert actions == ["delete", "update", "create"]


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("acme", "nothing", "5", "--for", "2h"), "there is no rule 'nothing'"),
        (("acme", "orders", "5", "--for", "soon"), "--for is a duration such as 30m, 2h or 7d, not 'soon'"),
        (("acme", "trial", "5", "--for", "2h"), "only user rules can be overridden"),
    ],
)
def test_wrong_overrides(run: Run, words: tuple[str, ...], error: str) -> None:
    result = run("override", *words)
    assert result.code == 2
    assert error in result.err


@pytest.mark.usefixtures("rules")
def test_tier_and_plans(run: Run) -> None:
    assert data(run, "tier", "acme", "premium") == {"user_id": "acme", "tier": "premium"}
    assert data(run, "tier", "acme", "--remove")["tier"] == "free"
    assert run("tier", "acme").code == 2
    run("plans", "set", "silver", "5/second", "100/day")
    assert [plan["name"] for plan in data(run, "plans", "list")] == ["gold", "silver"]
    assert len(data(run, "plans", "get", "silver")["limits"]) == 2
    run("plans", "set", "hot", "5/second", "--lease")
    assert data(run, "plans", "get", "hot") == {"name": "hot", "limits": ["5/second"], "lease": True}
    assert run("plans", "get", "hot").out == "hot: 5/second (lease)\n"
    run("plans", "set", "hot", "5/second")
    assert "lease" not in data(run, "plans", "get", "hot")
    wrong = run("plans", "set", "hot", "5 concurrent", "--lease")
    assert (wrong.code, "lease is not possible with concurrency" in wrong.err) == (2, True)
    assert run("plans", "delete", "hot").code == 0
    assert run("plans", "delete", "silver").code == 0
    assert run("plans", "get", "silver").code == 2


@pytest.mark.usefixtures("rules")
def test_plans_of_the_settings_are_listed_and_read_only(run: Run, folder: Path) -> None:
    """As with --url: a service has the plans of its files, too."""
    (folder / "crestgate.yaml").write_text("plans: {bronze: 1/second, gold: 2/second}\n")
    assert data(run, "plans", "list") == [
        {"name": "bronze", "limits": ["1/second"]},
        {"name": "gold", "limits": ["10/second burst 20"]},
    ]
    assert data(run, "plans", "get", "bronze")["limits"] == ["1/second"]
    database = f"sqlite:///{folder}/.crestgate/rules.db"
    assert [plan["name"] for plan in data(run, "plans", "list", "--rules-store", database)] == ["gold"]
    for words in (("set", "bronze", "3/second"), ("delete", "bronze")):
        done = run("plans", *words)
        assert (done.code, done.out) == (2, "")
        assert "plan 'bronze' is defined in a file, which is read-only here: change it there" in done.err
    assert run("plans", "set", "gold", "4/second").code == 0


@pytest.mark.usefixtures("rules")
def test_status_and_stats_without_a_service(run: Run) -> None:
    status = run("status")
    assert (status.code, status.err) == (0, "")
    assert "no running service in ./.crestgate" in status.out
    assert "rules in force: 5" in status.out
    assert data(run, "stats")["totals"] == {"allowed": 0, "denied": 0, "shadowed": 0}
    top = run("top", "--once")
    assert top.code == 2
    assert "no service runs in this folder" in top.err


def test_status_of_each_store(run: Run, folder: Path) -> None:
    closed_port = "redis://127.0.0.1:1/0"
    (folder / "crestgate.yaml").write_text(
        f"migrate: {{from: 'sqlite:///old.db', to: '{closed_port}', percent: 0}}\nstores: {{hot: 'sqlite:///hot.db'}}\n"
    )
    status = run("status", "--config", "crestgate.yaml", "--json")
    stores = {one["name"]: (one["url"], one["reachable"]) for one in json.loads(status.out)["stores"]}
    stores.pop("rule_database", None)
    assert stores == {
        "from": ("sqlite:///old.db", True),
        "to": (closed_port, False),
        "hot": ("sqlite:///hot.db", True),
    }
    assert status.code == 1


@pytest.mark.usefixtures("rules")
def test_status_of_a_service_in_this_folder(run: Run, folder: Path) -> None:
    remove = write_service_file("http://127.0.0.1:8080", str(folder / "snapshots"), 3)
    assert run("status").out.startswith("no running service"), "no worker has published"
    now_us = time.time_ns() // 1000
    worker = WorkerStatus(42, now_us - 5_000_000, {"a:1": ("open", "no response")}, 7, now_us - 1_000_000, "gone")
    WorkerSnapshots(folder / "snapshots", 0).publish(Snapshot(at_us=now_us, sequence=1, worker=worker))
    stuck = WorkerStatus(43, now_us - 90_000_000, policy_decisions=5, policy_decided_us=now_us - 60_000_000)
    WorkerSnapshots(folder / "snapshots", 1).publish(Snapshot(at_us=now_us - 60_000_000, sequence=1, worker=stuck))
    status = run("status")
    assert status.code == 1
    assert "2 of 3 workers do not respond" in status.out
    assert re.search(r"1 +43 .* silent since", status.out)
    assert "the failure policy decides now: 7 checks in the last minute were not decided by the store" in status.out
    top = run("top", "--json", "--interval", "0.5")
    assert (top.code, json.loads(top.out)["policy_decides_now"]) == (0, True)
    assert [json.loads(top.out)[name] for name in ("workers", "workers_expected")] == [1, 3]
    stats = run("stats")
    assert "the failure policy decides now" in stats.err
    remove()
    assert read_service_file() is None


def node(allowed: int) -> dict[str, Any]:
    """The members of a status that `top` reads."""
    decisions = {"allowed": allowed, "denied": 0, "fail_open": 0}
    return {"decisions": decisions, "policy_decides_now": False, "policy_decisions_last_minute": 0} | {
        "workers": [{"silent": False}],
        "workers_expected": 1,
    }


def test_top_shows_errors_and_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch, on_a_terminal: Callable[[int], None]
) -> None:
    on_a_terminal(120)
    monkeypatch.setenv("CRESTGATE_ADMIN_KEY", TOKEN)
    naps = iter((None, None, None, KeyboardInterrupt))

    def nap(_: float) -> None:
        if next(naps) is not None:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", nap)
    with fake_service() as service:
        service.responses = [
            (200, {"top": [{"subject": "user:42", "allowed": 7, "denied": 0}], "top_denied": []}),
            (200, node(0)),
            (503, {"detail": "the rule database is unavailable"}),
            (200, node(5)),
            (200, node(5)),
        ]
        done = run("top", "--url", service.url)
    assert (done.code, done.err) == (0, "")
    error = done.out.index("the rule database is unavailable")
    assert "user:42" in done.out[error:]
    assert "allowed/s" in done.out[error:], "it has stopped at the error"


def test_top_in_a_pipe_prints_one_measurement(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRESTGATE_ADMIN_KEY", TOKEN)
    with fake_service() as service:
        top = [{"subject": "user:42", "allowed": 7, "denied": 0}]
        service.responses = [(200, node(0)), (200, node(5)), (200, {"top": top, "top_denied": []})]
        done = run("top", "--interval", "0.5", "--url", service.url)
    assert (done.code, done.err) == (0, "")
    assert "user:42" in done.out


def test_top_finds_a_restarted_service_of_this_folder(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, on_a_terminal: Callable[[int], None]
) -> None:
    on_a_terminal(120)

    def start(name: str) -> Callable[[], None]:
        now_us = time.time_ns() // 1000
        worker = WorkerStatus(42, now_us - 5_000_000)
        WorkerSnapshots(folder / name, 0).publish(Snapshot(at_us=now_us, sequence=1, worker=worker))
        return write_service_file("http://127.0.0.1:8080", str(folder / name), 1)

    assert run("keys", "create", "ops").code == 0
    steps: list[Callable[[], object]] = [start("first"), lambda: None, lambda: start("second"), lambda: None]

    def nap(_: float) -> None:
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    monkeypatch.setattr(time, "sleep", nap)
    done = run("top")
    assert (done.code, done.err) == (0, "")
    assert "allowed/s" in done.out[done.out.index("no service runs in this folder") :]


STORES = """\
store: shared:///{folder}/main
stores: {{hot: "redis://:secret@127.0.0.1:1/0", cold: "shared:///{folder}/cold"}}
"""
MIGRATION = "migrate: {{from: 'shared:///{folder}/main', to: 'redis://127.0.0.1:1/0', percent: 10}}\n"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (STORES, {"default": True, "hot": False, "cold": True}),
        (MIGRATION, {"from": True, "to": False}),
    ],
)
def test_status_has_a_row_for_each_store(run: Run, folder: Path, settings: str, expected: dict[str, bool]) -> None:
    (folder / "crestgate.yaml").write_text(settings.format(folder=folder))
    done = run("status", "--json")
    assert done.code == 1
    stores = json.loads(done.out)["stores"]
    assert {one["name"]: one["reachable"] for one in stores} == expected
    for one in stores:
        assert (one["last_error"] is None) == one["reachable"]


@pytest.mark.usefixtures("rules")
def test_rotated_key_has_a_grace_period(run: Run) -> None:
    made = data(run, "keys", "create", "ops", "--scope", "write", "--expires", "90d")
    new = data(run, "keys", "rotate", made["key_id"], "--grace", "1h")
    assert (new["name"], new["scope"], new["expires_at"]) == ("ops", "write", made["expires_at"])
    assert new["token"] != made["token"]
    assert new["replaces"]["key_id"] == made["key_id"]
    assert new["replaces"]["expires_at"] < made["expires_at"]
    assert run("keys", "rotate", "000000000000").code == 2


@pytest.mark.parametrize("command", ["top", "stats", "status", "audit", "override", "tier", "plans set", *KEYS])
def test_help_shows_an_example(run: Run, command: str) -> None:
    words = [*command.split(), *(["set"] if command == "override" else [])]
    assert f"  crestgate {command}" in run(*words, "--help").out
