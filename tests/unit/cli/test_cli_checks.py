"""`crestgate check`, `peek` and `reset`."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from crestgate.rules.port import AuditQuery
from crestgate.rules.storage.factory import open_repository
from servers.process import GivenServer
from servers.redis import RedisServer
from unit.cli.conftest import Run

SETTINGS = """\
store: sqlite:///counters.db?timeout_ms=30000
plans: {gold: 10/hour burst 20, daily: [5/day using fixed_window, 100/week]}
tiers: {alice: premium}
rules:
  - {rule_id: orders, dimension: user, endpoint_pattern: "/orders/*", limit: 2, window_seconds: 3600}
  - {rule_id: premium, dimension: user, tier: premium, endpoint_pattern: "/orders/*", limit: 9, window_seconds: 3600}
  - {rule_id: per-ip, dimension: ip, limit: 100, window_seconds: 3600}
  - {rule_id: per-key, dimension: apikey, method: POST, limit: 7, window_seconds: 3600}
  - {rule_id: trial, dimension: client, mode: shadow, limit: 1, window_seconds: 3600}
default_client_limits: off
"""
STORE = "sqlite:///counters.db?timeout_ms=30000"
LIMIT_HINT = "; a limit is written as 10/min"


@pytest.fixture
def settings(folder: Path) -> Path:
    path = folder / "crestgate.yaml"
    path.write_text(SETTINGS)
    return path


def test_key_is_counted_until_it_is_denied(run: Run) -> None:
    results = [run("check", "user:42", "--limit", "2/hour", "--store", STORE) for _ in range(3)]
    assert [ran.code for ran in results] == [0, 0, 1]
    assert [ran.err for ran in results] == ["", "", ""]
    assert results[0].out == (
        "allowed\n"
        "LIMIT   ALLOWED  REMAINING  OF  RESETS IN  RETRY AFTER  DELAY  STATE\n"
        "2/hour  yes      1          2   30 min     -            -      normal\n"
    )
    assert re.match(r"denied by 2/hour: retry after (30|29) min.*\n", results[2].out)
    assert "no       0          2" in results[2].out
    assert "throttled" in results[2].out


def test_peek_counts_nothing(run: Run) -> None:
    for _ in range(3):
        code, out, err = run("peek", "user:42", "--limit", "2/hour", "--store", STORE)
        assert (code, err) == (0, "")
        assert out.startswith("would be allowed\n")
    run("check", "user:42", "--limit", "2/hour", "--store", STORE, "--cost", 2)
    code, out, _ = run("peek", "user:42", "--limit", "2/hour", "--store", STORE)
    assert code == 1
    assert out.startswith("would be denied by 2/hour: retry after ")


def test_reset_clears_the_counter(run: Run) -> None:
    limited = ("user:42", "-l", "1/hour", "--store", STORE)
    assert [run("check", *limited).code, run("check", *limited).code] == [0, 1]
    assert run("reset", *limited) == (0, "reset 1 counter\nKEY      LIMIT\nuser:42  1/hour\n", "")
    assert run("check", *limited).code == 0
    code, out, _ = run("reset", *limited, "--json")
    assert (code, json.loads(out)) == (0, {"reset": [{"key": "user:42", "rule": "1/hour"}]})


def test_chain_is_all_or_nothing(run: Run) -> None:
    chain = ("user:42", "-l", "1/hour; 5/day", "-l", "7/week", "--store", STORE, "--json")
    assert run("check", *chain).code == 0
    code, out, _ = run("check", *chain)
    answer = json.loads(out)
    assert code == 1
    assert (answer["allowed"], answer["rule"], answer["reason"]) == (False, "1/hour", "limited")
    assert [(part["rule"], part["remaining"]) for part in answer["parts"]] == [
        ("1/hour", 0), ("5/day", 4), ("7/week", 6),
    ]  # fmt: skip


def test_json_output_matches_the_http_api(run: Run) -> None:
    code, out, err = run("check", "k", "-l", "10/hour using leaky_bucket", "--store", STORE, "--cost", 3, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "allowed": True,
        "limit": 10,
        "remaining": 7,
        "current_count": 3,
        "reset_after": 1080.0,
        "retry_after": None,
        "reason": "ok",
        "rule": "10/hour using leaky_bucket",
        "state": "normal",
        "delay": 0.0,
        "queue_position": 3,
    }
    denied = json.loads(run("check", "k", "-l", "10/hour", "--store", STORE, "--cost", 11, "--json").out)
    assert (denied["retry_after"], denied["reason"], denied["queue_position"]) == (None, "cost_exceeds_limit", None)


@pytest.mark.parametrize(
    ("limit", "cost", "expected"),
    [
        ("0/hour", 1, "denied by 0/hour: it blocks all requests"),
        ("5/hour", 6, "denied by 5/hour: the cost is above its maximum"),
    ],
)
def test_cost_above_the_limit_is_never_allowed(limit: str, cost: int, expected: str, run: Run) -> None:
    code, out, _ = run("check", "k", "-l", limit, "--cost", cost, "--store", STORE)
    assert code == 1
    assert out.splitlines()[0] == expected
    assert "never" in out


def test_delay_is_printed(run: Run) -> None:
    queue = ("check", "k", "-l", "10/hour using leaky_bucket", "--store", STORE)
    run(*queue)
    assert re.match(r"allowed after a delay of (5 min 59 s|6 min)\n", run(*queue).out)


def test_plans_come_from_the_settings(run: Run, settings: Path) -> None:
    code, out, err = run("check", "user:42", "-l", "gold", "-l", "daily", "--cost", 2)
    assert (code, err) == (0, "")
    assert [line.split()[:4] for line in out.splitlines()[2:]] == [
        ["gold", "yes", "18", "20"], ["daily", "yes", "3", "5"], ["daily#2", "yes", "98", "100"],
    ]  # fmt: skip
    expected = (
        "crestgate: there is no plan 'glod': did you mean 'gold'? it is not a limit either; the plans are daily, gold\n"
    )
    assert run("check", "user:42", "-l", "glod") == (2, "", expected)


@pytest.mark.parametrize("command", ["check", "peek", "reset"])
@pytest.mark.parametrize(
    ("option", "name", "more"),
    [("--plan", "gold", ""), ("--limit", "gold", LIMIT_HINT), ("--limit", "ten per minute", LIMIT_HINT)],
)
def test_unknown_plan_error_names_options(run: Run, command: str, option: str, name: str, more: str) -> None:
    assert run(command, "user:42", option, name) == (
        2,
        "",
        f"crestgate: there is no plan {name!r}: name the settings that have it with --config, or add it (`crestgate "
        f"rules apply`, or POST /api/v1/plans of a service){more}\n",
    )


def test_plan_by_option(run: Run, settings: Path) -> None:
    _, out, _ = run("check", "user:42", "--plan", "gold", "-l", "7/hour")
    assert [line.split()[:4] for line in out.splitlines()[2:]] == [
        ["7/hour", "yes", "6", "7"], ["gold", "yes", "19", "20"],
    ]  # fmt: skip
    assert run("check", "--plan", "gold").err == (
        "crestgate: --plan requires a KEY: crestgate check user:42 --plan gold\n"
    )
    assert run("check", "user:42", "--plan", "7/hour").err == (
        "crestgate: --plan names a plan, and '7/hour' is a limit: write --limit '7/hour'\n"
    )


def test_plans_may_be_kept_in_the_rules_store(run: Run, settings: Path, folder: Path) -> None:
    (folder / "plans.yaml").write_text("plans: {silver: 3/hour}\n")
    rules = "sqlite:///rules.db?timeout_ms=30000"
    run("rules", "apply", "-f", "plans.yaml", "--rules-store", rules)
    assert run("check", "k", "-l", "silver").code == 2
    assert run("check", "k", "-l", "silver", "--rules-store", rules).code == 0


def test_request_is_decided_by_the_rules(run: Run, settings: Path) -> None:
    request = ("--user", "bob", "--path", "/orders/1", "--ip", "192.0.2.1")
    code, out, err = run("check", *request)
    assert (code, err) == (0, "")
    assert [line.split()[:4] for line in out.splitlines()[2:]] == [
        ["orders", "yes", "1", "2"], ["per-ip", "yes", "99", "100"],
    ]  # fmt: skip
    run("check", *request)
    code, out, _ = run("check", *request)
    assert code == 1
    assert out.startswith("denied by orders: retry after ")
    assert run("peek", *request).code == 1
    code, out, _ = run("reset", *request)
    assert out == "reset 2 counters\nKEY           LIMIT\nuser:bob      orders\nip:192.0.2.1  per-ip\n"
    assert run("peek", *request).code == 0


@pytest.mark.parametrize(
    ("request_options", "rule"),
    [
        ("--user alice --path /orders/1", "premium"),
        ("--user bob --tier premium --path /orders/1", "premium"),
        ("--api-key k1 --method post", "per-key"),
        ("--api-key k1 --method GET", None),
        ("--key anything", "default-policy"),
        ("--path /nothing", None),
    ],
)
def test_every_request_option_selects_a_rule(request_options: str, rule: str | None, run: Run, settings: Path) -> None:
    code, out, _ = run("check", *request_options.split(), "--json")
    answer = json.loads(out)
    assert code == 0
    assert (answer["rule"], answer["reason"]) == (rule, "no_rule" if rule is None else "ok")


def test_no_rule_applies(run: Run, settings: Path) -> None:
    assert run("check", "--path", "/nothing") == (0, "allowed: no rule applies\n", "")
    assert run("reset", "--path", "/nothing") == (0, "no rule applies: there is nothing to reset\n", "")
    answer = json.loads(run("check", "--path", "/nothing", "--json").out)
    assert (answer["limit"], answer["remaining"], answer["current_count"]) == (None, None, None)


def test_shadow_rules_are_shown_and_do_not_decide(run: Run, settings: Path) -> None:
    run("check", "--client", "acme")
    code, out, _ = run("check", "--client", "acme")
    assert code == 0
    assert "trial (shadow)  no" in out
    answer = json.loads(run("check", "--client", "acme", "--json").out)
    assert [(shadow["rule"], shadow["allowed"]) for shadow in answer["shadows"]] == [("trial", False)]
    assert (answer["allowed"], answer["reason"], answer["limit"]) == (True, "shadow", None)


def test_reset_is_in_the_audit_log(run: Run, settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "operator")
    monkeypatch.setattr("socket.gethostname", lambda: "bastion")
    rules = "sqlite:///rules.db?timeout_ms=30000"
    assert run("db", "upgrade", "--rules-store", rules).code == 0
    assert run("reset", "user:42", "-l", "gold", "-l", "daily", "--rules-store", rules).code == 0
    monkeypatch.setenv("CRESTGATE_RULES_STORE", rules)
    assert run("reset", "--user", "bob", "--ip", "192.0.2.1", "--path", "/orders/1").code == 0
    with closing(open_repository(rules)) as repository:
        entries = [(e.actor, e.address, e.action, e.subject) for e in repository.audit(AuditQuery())]
    assert entries == [
        ("cli:operator", "bastion", action, subject)
        for subjects in (("ip:192.0.2.1", "user:bob"), ("user:42",))
        for action in ("reset", "reset requested")
        for subject in subjects
    ]


def test_reset_that_fails_is_in_the_audit_log_as_failed(run: Run, settings: Path) -> None:
    rules = "sqlite:///rules.db?timeout_ms=30000"
    assert run("db", "upgrade", "--rules-store", rules).code == 0
    code, _, _ = run("reset", "user:42", "-l", "1/day", "--store", "sqlite:///counters.db", "--rules-store", rules)
    assert code == 0
    with sqlite3.connect("counters.db") as database:
        database.execute("DROP TABLE crestgate_counters")
    code, _, err = run("reset", "user:42", "-l", "1/day", "--store", "sqlite:///counters.db", "--rules-store", rules)
    assert code != 0, err
    with closing(open_repository(rules)) as repository:
        actions = [entry.action for entry in repository.audit(AuditQuery())]
    assert actions == ["reset failed", "reset requested", "reset", "reset requested"]


def test_reset_without_audit_log_is_not_done(run: Run, settings: Path) -> None:
    run("check", "user:42", "-l", "1/day")
    code, out, err = run("reset", "user:42", "-l", "1/day", "--rules-store", "redis://u:secret@127.0.0.1:1/0")
    assert (code, out) == (2, "")
    assert err.startswith("crestgate: ")
    assert run("peek", "user:42", "-l", "1/day").code == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("check", "nothing to check"),
        ("check k", "a KEY requires a limit"),
        ("check k --user bob", "not both"),
        ("check --limit 3/s", "--limit requires a KEY"),
        ("check k -l 3/fortnight", "cannot read limit '3/fortnight': unknown unit 'fortnight'"),
        ("check --user bob", "a request is decided by rules"),
        ("check k -l 3/s --cost -1", "cost must be a whole number from 0"),
        ("check k -l 3/s --store rediss:/x", "unknown store URL 'rediss:/x'"),
        ("reset k -l 3/s --store redis://u:secret@127.0.0.1:1/0", "127.0.0.1:1"),
        ("check k -l 3/s --config nowhere.yaml", "nowhere.yaml: there is no such file"),
    ],
)
def test_errors_are_one_line(arguments: str, expected: str, run: Run) -> None:
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["check", "peek"])
@pytest.mark.parametrize("store", ["redis://u:secret@127.0.0.1:1/0", "mysql://u:secret@127.0.0.1:1/db"])
@pytest.mark.parametrize(
    ("policy", "code", "reason"), [("open", 0, "fail_open"), ("closed", 1, "fail_closed"), ("local", 0, "fallback")]
)
def test_failure_policy_decides_and_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str, store: str, policy: str, code: int, reason: str
) -> None:
    monkeypatch.setenv("CRESTGATE_ON_STORE_ERROR", policy)
    done = run(command, "k", "-l", "3/s", "--store", store)
    assert done.code == code
    assert "the failure policy decided, not the store:" in done.out
    assert f"({reason})" in done.out
    assert "127.0.0.1:1" in done.err
    data = json.loads(run(command, "k", "-l", "3/s", "--store", store, "--json").out)
    assert (data["reason"], data["failure_policy"]) == (reason, reason)


def test_failure_policy_of_a_rule(run: Run, folder: Path) -> None:
    rule = "{rule_id: pay, dimension: user, limit: 3, window_seconds: 60, on_store_error: closed}"
    (folder / "crestgate.yaml").write_text(f"store: redis://127.0.0.1:1/0\nrules: [{rule}]\n")
    done = run("check", "--user", "bob", "--json")
    assert (done.code, json.loads(done.out)["failure_policy"]) == (1, "fail_closed")


@pytest.mark.parametrize("command", ["check", "peek", "reset"])
def test_key_cannot_be_empty(command: str, run: Run) -> None:
    code, _, err = run(command, "", "-l", "3/s")
    assert code == 2
    assert err == "crestgate: key must not be empty: name what is limited, for example 'user:42'\n"


def test_environment_names_store_and_settings(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, settings: Path
) -> None:
    settings.rename(folder / "other.yaml")
    assert run("check", "k", "-l", "gold").code == 2
    monkeypatch.setenv("CRESTGATE_CONFIG", "other.yaml")
    assert run("check", "k", "-l", "gold").code == 0
    monkeypatch.setenv("CRESTGATE_STORE", "sqlite:///elsewhere.db?timeout_ms=30000")
    assert run("check", "k", "-l", "gold").code == 0
    assert (folder / "elsewhere.db").exists()
    monkeypatch.delenv("CRESTGATE_CONFIG")
    assert run("check", "k", "-l", "3/s").code == 0, "no settings are needed"


def test_mistakes_in_the_settings_have_file_and_line(run: Run, folder: Path) -> None:
    (folder / "crestgate.yaml").write_text("stroe: x\nplans: {gold: many}\n")
    code, out, err = run("check", "k", "-l", "gold")
    assert (code, out) == (2, "")
    assert [line[:17] for line in err.splitlines()] == ["crestgate.yaml:1:", "crestgate.yaml:2:"]


def test_table_is_drawn_on_a_terminal(run: Run, on_a_terminal: Callable[[int], None]) -> None:
    on_a_terminal(80)
    _, out, _ = run("check", "user:42", "-l", "2/hour", "--store", STORE)
    assert "\x1b[1;32mallowed\x1b[0m\n" in out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    verdict, head, line, row = (text.rstrip() for text in plain.splitlines())
    assert verdict == "allowed"
    assert head == "limit   allowed  remaining  of  resets in  state"
    assert set(line) == {"─"}
    assert row == "2/hour  yes      1          2   30 min     normal"


def test_no_color_is_honoured(run: Run, on_a_terminal: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(80)
    monkeypatch.setenv("NO_COLOR", "1")
    _, out, _ = run("check", "user:42", "-l", "2/hour", "--store", STORE)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", out)


def test_processes_share_a_store(shell: Run) -> None:
    results = [shell("check", "user:42", "-l", "1/hour", "--store", STORE) for _ in range(2)]
    assert [(ran.code, ran.out.split()[0], ran.err) for ran in results] == [(0, "allowed", ""), (1, "denied", "")]
    assert "\x1b" not in results[0].out


def test_redis(run: Run, redis_server: RedisServer | GivenServer, folder: Path) -> None:
    joint = "&" if "?" in redis_server.url else "?"
    store = f"{redis_server.url}{joint}timeout_ms=30000&prefix=cli-{folder.name}"
    limited = ("user:42", "-l", "1/hour", "--store", store)
    assert [run("check", *limited).code for _ in range(2)] == [0, 1]
    assert run("reset", *limited, "--rules-store", store).code == 0
    assert run("peek", *limited).code == 0
    with closing(open_repository(store)) as repository:
        entries = [(entry.action, entry.subject) for entry in repository.audit(AuditQuery())]
    assert entries == [("reset", "user:42"), ("reset requested", "user:42")]
