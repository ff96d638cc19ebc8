"""`crestgate explain`: the table, what would change the decision, exit codes, the failure policy and a service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crestgate.core.redaction import digest
from unit.cli.conftest import Run
from unit.cli.fake_service import TOKEN, fake_service

REQUEST = ("--user", "42", "--path", "/orders/7")


@pytest.mark.usefixtures("applied")
def test_explains_by_the_rules_and_counters_of_this_folder(run: Run) -> None:
    done = run("explain", *REQUEST)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "would be allowed"
    assert lines[1].split() == ["RULE", "VERDICT", "LIMIT", "USED", "LEFT", "RESETS", "IN", "STORE", "WHY"]
    assert lines[2].startswith("orders")
    assert lines[2].endswith("is for every user")
    assert lines[3].split()[:2] == ["strategy:api", "applies"]
    assert "trial" in done.out
    assert "the request has no ip" in done.out
    assert f"counters: shared memory in {Path.cwd()}/.crestgate/counters" in lines
    assert lines[-1] == "- more than 3 requests of cost 1 from now on: rule orders denies then"


@pytest.mark.usefixtures("applied")
def test_denial_exits_with_1_and_says_what_would_change_it(run: Run) -> None:
    for _ in range(3):
        assert run("check", *REQUEST).code == 0
    done = run("explain", *REQUEST)
    assert done.code == 1
    assert done.out.startswith("would be denied by orders: retry after")
    assert "- an override for user 42: crestgate override 42 orders 4 --for 2h" in done.out.splitlines()
    assert run("explain", *REQUEST, "--cost", "0").code == 0


def test_attributes(run: Run, folder: Path) -> None:
    rules = """
    - {rule_id: acme, dimension: [org, model], identifier: [acme, "*"], limit: 2, window_seconds: 3600}
    - {rule_id: others, dimension: [org, model], limit: 1, window_seconds: 3600}
    """
    (folder / "crestgate.yaml").write_text(f"store: sqlite:///counters.db?timeout_ms=30000\nrules: {rules}")
    request = ("--attr", "org=acme", "--attr", "model=large", "--config", "crestgate.yaml")
    assert [run("check", *request).code for _ in range(3)] == [0, 0, 1]
    explained = json.loads(run("explain", *request, "--json").out)
    (applies, lost) = explained["rules"]
    assert (applies["dimension"], applies["identifier"]) == (["org", "model"], ["acme", "*"])
    assert (applies["counter"]["key"], lost["identifier"]) == (digest("model:large|org:acme"), "*")
    assert run("reset", *request).code == 0
    assert run("peek", *request).code == 0
    for wrong in ("org", "=acme"):
        assert "--attr is NAME=VALUE" in run("explain", "--attr", wrong).err
    assert "twice" in run("explain", "--attr", "org=a", "--attr", "org=b").err


@pytest.mark.usefixtures("applied")
def test_consumes_nothing(run: Run) -> None:
    first, second = (json.loads(run("explain", *REQUEST, "--json").out) for _ in range(2))
    assert first == second
    assert first["decision"]["allowed"] is True
    assert json.loads(run("check", *REQUEST, "--json").out)["remaining"] == 2


@pytest.mark.usefixtures("applied")
def test_plans_and_the_policy_of_a_key(run: Run) -> None:
    plan = json.loads(run("explain", "--key", "a", "--plan", "gold", "--json").out)
    assert [(rule["rule_id"], rule["counter"]["limit"]) for rule in plan["rules"]] == [("gold", 20)]
    policy = json.loads(run("explain", "--key", "user-123", "--json").out)
    assert policy["rules"][0]["rule_id"] == "policy:user-123"


@pytest.mark.usefixtures("applied")
@pytest.mark.parametrize(("policy", "code"), [("open", 0), ("closed", 1), ("local", 0)])
def test_says_that_the_failure_policy_decided(
    run: Run, monkeypatch: pytest.MonkeyPatch, policy: str, code: int
) -> None:
    monkeypatch.setenv("CRESTGATE_ON_STORE_ERROR", policy)
    done = run("explain", *REQUEST, "--store", "redis://127.0.0.1:1")
    assert done.code == code
    reason = "fallback" if policy == "local" else f"fail_{policy}"
    assert "the failure policy decided, not the store:" in done.out
    assert f"({reason})" in done.out
    assert "- an answer of the store: the failure policy (on_store_error) decided in its place" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to explain"),
        (("--plan", "gold"), "nothing to explain"),
        (("--user", "42", "--plan", "gold"), "--plan needs a --key"),
        (("--key", "a", "--plan", "5/minute"), "is a limit"),
        (("--user", "42"), "there is no ./.crestgate/rules.db"),
        (("--user", "42", "--url", "http://127.0.0.1:1", "--store", "memory://"), "leave --store out"),
    ],
)
def test_usage_errors(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run("explain", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.usefixtures("applied")
def test_invalid_cost_is_a_usage_error(run: Run) -> None:
    done = run("explain", *REQUEST, "--cost", "-1")
    assert done.code == 2
    assert "cost" in done.err


def test_only_the_nearest_misses_are_in_the_table(run: Run) -> None:
    rules = [
        {"rule_id": f"r{n}", "dimension": "user", "identifier": f"u{n}", "limit": 1, "window_seconds": 60}
        for n in range(30)
    ]
    Path("rules.json").write_text(json.dumps(rules))
    done = run("explain", "--user", "42", "--rules-store", "rules.json")
    assert done.out.splitlines()[0] == "would be allowed: no rule applies"
    assert done.out.count("no match") == 10
    assert "20 more of 30 rules do not match" in done.out


def test_asks_a_service(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRESTGATE_ADMIN_KEY", TOKEN)
    decision = {
        "allowed": False,
        "limit": 3,
        "remaining": 0,
        "reset_after": 9.0,
        "retry_after": 9.0,
        "reason": "limited",
        "rule": "orders",
        "state": "throttled",
        "delay": 0.0,
    }
    answer = {"decision": decision, "rules": [], "considered": 0, "truncated": False, "store": "a", "changes": ["b"]}
    with fake_service() as service:
        service.responses = [(200, answer), (200, {"decision": {}})]
        done = run("explain", *REQUEST, "--cost", "2", "--url", service.url)
        assert service.requests == [
            ("POST", "/api/v1/explain", {"context": {"user": "42", "path": "/orders/7"}, "cost": 2})
        ]
        assert done.code == 1
        assert done.out.splitlines()[-1] == "- b"
        done = run("explain", *REQUEST, "--url", service.url)
        assert done.code == 2
        assert "its response is not an explanation" in done.err
