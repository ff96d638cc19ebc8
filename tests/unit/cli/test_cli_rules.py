"""`headgate rules`."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.errors import StoreError
from headgate.rules.editor import Editor
from headgate.rules.repositories.opening import open_repository
from headgate.rules.repositories.port import Actor, AuditQuery
from servers.process import GivenServer
from servers.redis import RedisServer
from unit.cli.conftest import PLACE, Run

RULES = """\
rules:
  - {rule_id: orders, dimension: user, endpoint_pattern: "/orders/*", limit: 3, window_seconds: 60}
  - {rule_id: trial, dimension: ip, mode: shadow, limit: 1, window_seconds: 0.5, expires_at: "2999-01-01T00:00:00Z"}
plans: {gold: 10/second burst 20}
tiers: {alice: premium}
policies:
  - {key: user-123, capacity: 100, refillRate: 10}
clients:
  - {clientId: acme, limits: [{limitType: DEFAULT, timeIntervalLimit: {timeUnit: MIN, maxRequests: 50}}]}
strategies:
  api: {enabled: true, limit: 100/minute}
"""
IDS = ["client:acme:DEFAULT:GLOBAL", "orders", "policy:user-123", "strategy:api", "trial"]
URL = "sqlite:///rules.db?timeout_ms=30000"


@pytest.fixture(autouse=True)
def rules_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Rules in a file, and a database that the environment names."""
    (folder / "rules.yaml").write_text(RULES)
    monkeypatch.setenv("HEADGATE_RULES_STORE", URL)
    return URL


@pytest.fixture
def applied(run: Run) -> None:
    assert run("rules", "apply", "-f", "rules.yaml").code == 0


def test_all_sections_are_applied_in_one_write(run: Run, folder: Path) -> None:
    assert run("rules", "apply", "-f", "rules.yaml") == (
        0,
        f"made     SQLite file {folder}/rules.db\n"
        "added    rule orders\n"
        "added    rule trial\n"
        "added    rule strategy:api\n"
        "added    rule policy:user-123\n"
        "added    rule client:acme:DEFAULT:GLOBAL\n"
        "added    plan gold\n"
        "added    tier alice\n"
        f"SQLite file {folder}/rules.db: 7 added, 0 changed, 0 unchanged\n",
        "",
    )
    with closing(open_repository(URL)) as repository:
        changes = repository.changes(0)
    assert changes is not None
    assert changes.revision == 1
    assert len(changes.records) == 8, "and the number of the last policy"


def test_applying_again_changes_nothing(run: Run, folder: Path, applied: None) -> None:
    told = f"SQLite file {folder}/rules.db: 0 added, 0 changed, 7 unchanged\n"
    assert run("rules", "apply", "-f", "rules.yaml") == (0, told, "")


def test_what_changes_is_told(run: Run, folder: Path, applied: None) -> None:
    (folder / "rules.yaml").write_text(RULES.replace("limit: 3,", "limit: 5, method: get,").replace("burst 20", ""))
    assert run("rules", "apply", "-f", "rules.yaml", "--dry-run").out == (
        "would be changed  rule orders: method * -> GET, limit 3 -> 5\n"
        'would be changed  plan gold: limits ["10/second burst 20"] -> ["10/second"]\n'
        f"SQLite file {folder}/rules.db: 0 added, 2 changed, 5 unchanged; a dry run, nothing was written\n"
    )
    assert run("rules", "get", "orders", "--json").out.count('"limit": 3') == 1
    code, out, _ = run("rules", "apply", "-f", "rules.yaml")
    assert code == 0
    assert "changed  rule orders: method * -> GET, limit 3 -> 5\n" in out
    assert run("rules", "get", "orders", "--json").out.count('"limit": 5') == 1


def test_several_files_and_a_list_of_rules(run: Run, folder: Path) -> None:
    (folder / "more.json").write_text(
        json.dumps([{"rule_id": "one", "dimension": "ip", "limit": 1, "window_seconds": 1}])
    )
    code, out, _ = run("rules", "apply", "-f", "rules.yaml", "-f", "more.json")
    assert code == 0
    assert "added    rule one\n" in out
    assert "8 added" in out


def test_a_file_that_is_named_twice_is_read_once(run: Run, folder: Path) -> None:
    (folder / "same.yaml").symlink_to("rules.yaml")
    code, out, err = run("rules", "apply", "-f", "rules.yaml", "-f", folder / "rules.yaml", "-f", "same.yaml")
    assert (code, err) == (0, "")
    assert "7 added" in out


def test_mistakes_in_files_are_all_told_and_nothing_is_written(run: Run, folder: Path) -> None:
    (folder / "bad.yaml").write_text(
        "rules:\n  - {rule_id: a, dimension: moon, limit: 1, window_seconds: 1}\nplan: {}\n"
    )
    (folder / "worse.yaml").write_text("plans:\n  gold: many\n")
    for command in ("apply", "diff"):
        code, out, err = run("rules", command, "-f", "bad.yaml", "-f", "worse.yaml", "-f", "nowhere.yaml")
        assert (code, out) == (2, "")
        assert [line.split(": ")[0] for line in err.splitlines()] == [
            "bad.yaml:2", "bad.yaml:3", "worse.yaml:2", "nowhere.yaml",
        ]  # fmt: skip
    assert not (folder / "rules.db").exists()


def test_prune_asks_on_a_terminal(folder: Path, applied: None) -> None:
    (folder / "one.yaml").write_text("\n".join(RULES.splitlines()[:2]))
    command = [sys.executable, "-m", "headgate", "rules", "apply", "-f", "one.yaml", "--prune"]
    for answer, code in (("n\n", 2), ("\x04", 2), ("y\n", 0)):
        terminal, its_end = os.openpty()
        os.write(terminal, answer.encode())
        around = {**os.environ, "PYTHONPATH": PLACE}
        done = subprocess.run(command, stdin=its_end, capture_output=True, text=True, env=around, timeout=120)
        os.close(terminal)
        os.close(its_end)
        assert done.returncode == code
        assert done.stdout.startswith("would be deleted  rule client:acme:DEFAULT:GLOBAL\n")
        assert f"Delete 4 rules of SQLite file {folder}/rules.db? [y/N]:" in done.stderr
        assert ("headgate: not agreed: nothing was written\n" in done.stderr) == bool(code)
    with closing(open_repository(URL)) as repository:
        assert [record.id for record in repository.list("rule")] == ["orders"]


def test_prune_without_a_terminal_needs_a_yes(run: Run, folder: Path, applied: None) -> None:
    (folder / "one.yaml").write_text("\n".join(RULES.splitlines()[:2]))
    told = "headgate: --prune would delete 4 rules not in the files: add --yes, or look with --dry-run\n"
    assert run("rules", "apply", "-f", "one.yaml", "--prune") == (2, "", told)


def test_prune_with_yes(run: Run, folder: Path, applied: None) -> None:
    (folder / "one.yaml").write_text("\n".join(RULES.splitlines()[:2]))
    code, out, _ = run("rules", "apply", "-f", "one.yaml", "--prune", "--dry-run")
    assert code == 0
    assert "would be deleted  rule trial\n" in out
    assert run("rules", "apply", "-f", "one.yaml", "--prune", "--yes").out == (
        "deleted  rule client:acme:DEFAULT:GLOBAL\n"
        "deleted  rule policy:user-123\n"
        "deleted  rule strategy:api\n"
        "deleted  rule trial\n"
        f"SQLite file {folder}/rules.db: 0 added, 0 changed, 4 deleted, 1 unchanged\n"
    )


def test_who_wrote_is_in_the_audit_log(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "operator")
    monkeypatch.setattr("socket.gethostname", lambda: "bastion")
    run("rules", "apply", "-f", "rules.yaml")

    def nobody() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", nobody)
    monkeypatch.setattr("os.getuid", lambda: 4711)
    run("rules", "delete", "trial")
    with closing(open_repository(URL)) as repository:
        newest, *_, oldest = repository.audit(AuditQuery())
    assert (newest.actor, newest.address, newest.action, newest.subject) == (
        *("cli:4711", "bastion", "delete", "rule:trial"),
    )
    assert (oldest.actor, oldest.action) == ("cli:operator", "create")


def test_somebody_else_writes_at_the_same_time(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("rules", "apply", "-f", "rules.yaml")
    (folder / "rules.yaml").write_text(RULES.replace("limit: 3,", "limit: 5,"))
    compared = Editor.difference

    def slow(self: Editor, records: Any) -> Any:
        found = compared(self, records)
        with closing(open_repository(URL)) as repository:
            other = Editor(repository, Actor("other"))
            other.replace(other.rule("orders"))
        return found

    monkeypatch.setattr(Editor, "difference", slow)
    code, out, err = run("rules", "apply", "-f", "rules.yaml")
    assert (code, out) == (2, "")
    assert err.startswith("headgate: somebody else wrote at the same time")
    assert err.endswith("nothing was written; try again\n")
    assert err.count("\n") == 1


def test_a_place_that_is_taken(run: Run, folder: Path, applied: None) -> None:
    (folder / "rival.yaml").write_text(
        RULES.splitlines()[0] + "\n" + RULES.splitlines()[1].replace("orders,", "rival,")
    )
    code, out, err = run("rules", "apply", "-f", "rival.yaml")
    assert (code, out) == (2, "")
    assert "'rival' would be as specific as rule 'orders'" in err


def test_list(run: Run, applied: None) -> None:
    assert run("rules", "list").out == (
        "ID                          DIMENSION  IDENTIFIER  PATTERN    METHOD  TIER  LIMIT            "
        "ALGORITHM               MODE     EXPIRES               VERSION\n"
        "client:acme:DEFAULT:GLOBAL  client     acme        *          *       *     50/60s           "
        "token_bucket            enforce  -                     1\n"
        "orders                      user       *           /orders/*  *       *     3/60s            "
        "sliding_window_counter  enforce  -                     1\n"
        "policy:user-123             key        user-123    *          *       *     10/1s burst 100  "
        "token_bucket            enforce  -                     1\n"
        "strategy:api                api        *           *          *       *     100/60s          "
        "token_bucket            enforce  -                     1\n"
        "trial                       ip         *           *          *       *     1/0.5s           "
        "sliding_window_counter  shadow   2999-01-01T00:00:00Z  1\n"
    )


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ("--dimension API", ["strategy:api"]),
        ("--dimension ip --mode enforce", []),
        ("--mode SHADOW", ["trial"]),
        ("", IDS),
    ],
)
def test_list_some(filters: str, ids: list[str], run: Run, applied: None) -> None:
    code, out, _ = run("rules", "list", *filters.split(), "--json")
    assert code == 0
    assert [rule["rule_id"] for rule in json.loads(out)] == ids


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--dimension moon", "--dimension is one of user, apikey, client, ip, key, api, global, not 'moon'"),
        ("--mode loud", "--mode is one of enforce, shadow, disabled, not 'loud'"),
        ("--json --yaml", "--json or --yaml, not both"),
        ("--all", "--all goes with --yaml, and with neither --dimension nor --mode"),
        ("--all --yaml --mode shadow", "--all goes with --yaml, and with neither --dimension nor --mode"),
    ],
)
def test_list_in_vain(options: str, told: str, run: Run, applied: None) -> None:
    assert run("rules", "list", *options.split()) == (2, "", f"headgate: {told}\n")


def test_listed_yaml_is_applied_elsewhere(run: Run, folder: Path, applied: None) -> None:
    (folder / "odd.yaml").write_text(
        "rules: [{rule_id: '1e3', name: 'on', dimension: user, identifier: '0x1F', limit: 1, window_seconds: 9}]\n"
    )
    run("rules", "apply", "-f", "odd.yaml")
    code, out, _ = run("rules", "list", "--yaml")
    assert code == 0
    (folder / "dump.yaml").write_text(out)
    assert run("rules", "diff", "-f", "dump.yaml") == (0, "no differences, 6 compared\n", "")
    assert run("rules", "apply", "-f", "dump.yaml", "--rules-store", "sqlite:///copy.db?timeout_ms=30000").code == 0


@pytest.mark.parametrize("limits", ["off", "[5/second, 100/day]"])
def test_all_that_is_listed_is_all_that_is_kept(limits: str, run: Run, folder: Path, applied: None) -> None:
    (folder / "defaults.yaml").write_text(
        "tiers: {'42': basic}\ndefault_policy: {capacity: 7}\npolicy_key: [route, user]\n"
        f"default_client_limits: {limits}\n"
    )
    assert run("rules", "apply", "-f", "defaults.yaml").code == 0
    code, out, _ = run("rules", "list", "--yaml", "--all")
    assert code == 0
    (folder / "dump.yaml").write_text(out)
    copy = "sqlite:///copy.db?timeout_ms=30000"
    assert run("rules", "apply", "-f", "dump.yaml", "--rules-store", copy).code == 0
    for url in (URL, copy):
        given = ("-f", "dump.yaml", "--rules-store", url)
        assert run("rules", "diff", *given) == (0, "no differences, 11 compared\n", "")
        given = ("-f", "rules.yaml", "-f", "defaults.yaml", "--rules-store", url)
        assert run("rules", "diff", *given) == (0, "no differences, 11 compared\n", "")


def test_all_of_nothing(run: Run) -> None:
    assert run("db", "upgrade", "--rules-store", URL).code == 0
    assert run("rules", "list", "--yaml", "--all") == (0, "{}\n", "")


def test_get(run: Run, applied: None) -> None:
    code, out, err = run("rules", "get", "trial")
    assert (code, err) == (0, "")
    data = yaml.safe_load(out)
    assert (data["rule_id"], data["limit"], data["expires_at"]) == ("trial", 1, "2999-01-01T00:00:00Z")
    assert json.loads(run("rules", "get", "trial", "--json").out) == data
    assert run("rules", "get", "x") == (2, "", "headgate: there is no rule 'x'\n")


@pytest.mark.parametrize("command", ["get", "delete"])
def test_a_rule_that_may_have_been_meant(command: str, run: Run, applied: None) -> None:
    told = "headgate: there is no rule 'order': did you mean 'orders'?\n"
    assert run("rules", command, "order") == (2, "", told)


def test_one_of_several_that_may_have_been_meant(run: Run, applied: None) -> None:
    told = "headgate: there is no rule 'trail': did you mean 'trial'?\n"
    assert run("rules", "delete", "orders", "trail") == (2, "", told)


def test_delete(run: Run, applied: None) -> None:
    assert run("rules", "delete", "orders", "x") == (2, "", "headgate: there is no rule 'x'\n")
    assert run("rules", "delete", "orders", "trial", "orders") == (0, "deleted  rule orders\ndeleted  rule trial\n", "")
    assert run("rules", "get", "orders").code == 2


def test_diff(run: Run, folder: Path, applied: None) -> None:
    assert run("rules", "diff", "-f", "rules.yaml") == (0, "no differences, 7 compared\n", "")
    changed = RULES.replace("rule_id: orders", "rule_id: fresh").replace("window_seconds: 0.5", "window_seconds: 2")
    (folder / "rules.yaml").write_text(changed.replace('"2999-01-01T00:00:00Z"', "null"))
    assert run("rules", "diff", "-f", "rules.yaml") == (
        1,
        "+ rule fresh\n"
        "~ rule trial\n"
        "    window_seconds: 0.5 -> 2\n"
        "    expires_at: 2999-01-01T00:00:00Z -> -\n"
        "- rule orders\n"
        f"1 only in the files, 1 different, 1 only in SQLite file {folder}/rules.db, 5 the same\n",
        "",
    )


def test_files_are_read_and_never_written(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADGATE_RULES_STORE")
    assert run("rules", "list").err.startswith("headgate: which rules? Write --rules-store URL")
    (folder / "headgate.yaml").write_text(RULES)
    assert run("rules", "get", "orders").code == 0
    assert run("rules", "get", "orders", "--rules-store", "rules.yaml").code == 0
    assert run("rules", "diff", "-f", "rules.yaml").code == 0
    code, out, err = run("rules", "delete", "orders")
    assert (code, out) == (2, "")
    assert "headgate.yaml cannot be written from here: edit the file, which is read again as soon as it changes" in err
    assert err.count("\n") == 1
    (folder / "one.yaml").write_text("plans: {new: 1/s}\n")
    assert "cannot be written from here" in run("rules", "apply", "-f", "one.yaml", "--config", "headgate.yaml").err


def test_a_rule_in_a_file_has_no_times(run: Run, folder: Path) -> None:
    rule = json.loads(run("rules", "get", "orders", "--rules-store", "rules.yaml", "--json").out)
    assert (rule["created_at"], rule["updated_at"]) == (None, None)


def test_a_stored_rule_that_cannot_be_read_can_be_deleted(run: Run, folder: Path, applied: None) -> None:
    with sqlite3.connect(folder / "rules.db") as connection:
        connection.execute("UPDATE headgate_records SET body = '{\"limit\": -1}' WHERE id = x'6f7264657273'")
    for command in ("list", "get orders", "diff -f rules.yaml", "apply -f rules.yaml"):
        code, out, err = run("rules", *command.split())
        assert (code, out) == (2, "")
        assert "rule 'orders': limit: must be " in err
        assert err.endswith("; `headgate rules delete orders` removes this rule\n")
        assert err.count("headgate rules delete") == 1
    assert run("rules", "delete", "orders").code == 0
    assert run("rules", "diff", "-f", "rules.yaml").code == 1


def test_the_settings_name_the_rules_store(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADGATE_RULES_STORE")
    (folder / "my.yaml").write_text("rules_store: sqlite:///mine.db?timeout_ms=30000\n")
    assert run("rules", "apply", "-f", "rules.yaml", "--config", "my.yaml").code == 0
    assert (folder / "mine.db").exists()
    monkeypatch.setenv("HEADGATE_CONFIG", "my.yaml")
    assert run("rules", "get", "orders").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        "rules list",
        "rules get orders",
        "rules delete orders",
        "rules diff -f rules.yaml",
        "check --user bob",
        "reset k -l 1/s",
    ],
)
def test_a_file_that_is_not_there_is_not_made(arguments: str, run: Run, folder: Path) -> None:
    told = (
        f"headgate: SQLite file {folder}/ruels.db: there is no such file: mend its name, or make it with "
        "`headgate rules apply` or `headgate db upgrade --rules-store 'sqlite:///ruels.db'`\n"
    )
    assert run(*arguments.split(), "--rules-store", "sqlite:///ruels.db") == (2, "", told)
    assert [path.name for path in folder.iterdir()] == ["rules.yaml"]


def test_a_file_that_is_not_there_is_not_made_by_a_dry_run(run: Run, folder: Path) -> None:
    code, out, err = run("rules", "apply", "-f", "rules.yaml", "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith(f"would be made    SQLite file {folder}/rules.db\nwould be added    rule orders\n")
    assert out.endswith(
        f"SQLite file {folder}/rules.db: 7 added, 0 changed, 0 unchanged; a dry run, nothing was written\n"
    )
    assert not (folder / "rules.db").exists()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite://", "name the file"),
        ("sqlite:///:memory:", "name the file"),
        ("memory://", "rules cannot be kept at 'memory://'"),
        ("redis://u:secret@127.0.0.1:1/0", "127.0.0.1:1"),
        ("mysql://u:secret@127.0.0.1:1/db", "MySQL at 127.0.0.1:1/db"),
        ("nowhere.yaml", "nowhere.yaml: there is no such file"),
    ],
)
def test_what_cannot_be_opened(url: str, told: str, run: Run) -> None:
    code, out, err = run("rules", "list", "--rules-store", url)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_a_database_that_fails(run: Run, applied: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(self: Editor) -> Any:
        raise StoreError("the database has gone away")

    monkeypatch.setattr(Editor, "rules", away)
    assert run("rules", "list") == (2, "", "headgate: the database has gone away\n")


def test_a_terminal_gets_what_fits(run: Run, applied: None, on_a_terminal: Callable[[int], None]) -> None:
    on_a_terminal(80)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", run("rules", "list").out)
    assert max(map(len, plain.splitlines())) <= 80
    assert plain.splitlines()[-1] == "left out for want of room: version, algorithm, expires"
    on_a_terminal(200)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", run("rules", "list").out)
    assert plain.split("\n")[0].split() == (
        "id dimension identifier pattern limit algorithm mode expires version".split()
    ), "columns that say nothing are left out"


def test_strange_ids_neither_break_tables_nor_reach_the_terminal(run: Run, folder: Path) -> None:
    identifier = "[red]x\\e[31m"
    (folder / "odd.yaml").write_text(
        f'rules: [{{rule_id: odd, dimension: user, identifier: "{identifier}", limit: 1, window_seconds: 1}}]\n'
    )
    run("rules", "apply", "-f", "odd.yaml")
    assert "[red]x\\x1b[31m" in run("rules", "list").out


def test_as_processes(shell: Run, applied: None) -> None:
    assert shell("rules", "diff", "-f", "rules.yaml").code == 0
    assert shell("rules", "delete", "x") == (2, "", "headgate: there is no rule 'x'\n")
    code, out, err = shell("rules", "list", "--yaml", PYTHONIOENCODING="ascii")
    assert (code, err) == (0, "")
    assert [rule["rule_id"] for rule in yaml.safe_load(out)] == IDS


def test_redis(run: Run, redis_server: RedisServer | GivenServer, folder: Path) -> None:
    joint = "&" if "?" in redis_server.url else "?"
    url = f"{redis_server.url}{joint}timeout_ms=30000&prefix=cli-{folder.name}"
    assert run("rules", "apply", "-f", "rules.yaml", "--rules-store", url).code == 0
    assert run("rules", "diff", "-f", "rules.yaml", "--rules-store", url) == (0, "no differences, 7 compared\n", "")
    assert run("rules", "delete", "trial", "--rules-store", url).code == 0
    assert run("rules", "diff", "-f", "rules.yaml", "--rules-store", url).code == 1
