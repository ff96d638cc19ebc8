"""`crestgate rules apply`, `diff` and `delete`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from crestgate.rules.editor import Editor
from crestgate.rules.port import Actor, AuditQuery
from crestgate.rules.storage.factory import open_repository
from unit.cli.conftest import IDS, IMPORT_PATH, RULES, URL, Run

pytestmark = pytest.mark.usefixtures("rules_store")


def test_all_sections_are_applied_in_one_write(run: Run, folder: Path) -> None:
    assert run("rules", "apply", "-f", "rules.yaml") == (
        0,
        f"created  SQLite file {folder}/rules.db\n"
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
    assert len(changes.records) == 8, "including the number of the last policy"


def test_applying_again_changes_nothing(run: Run, folder: Path, applied: None) -> None:
    expected = f"SQLite file {folder}/rules.db: 0 added, 0 changed, 7 unchanged\n"
    assert run("rules", "apply", "-f", "rules.yaml") == (0, expected, "")


def test_changes_are_printed(run: Run, folder: Path, applied: None) -> None:
    (folder / "rules.yaml").write_text(RULES.replace("limit: 3,", "limit: 5, method: get,").replace("burst 20", ""))
    assert run("rules", "apply", "-f", "rules.yaml", "--dry-run").out == (
        "would be changed  rule orders: method * -> GET, limit 3 -> 5\n"
        'would be changed  plan gold: limits ["10/second burst 20"] -> ["10/second"]\n'
        f"SQLite file {folder}/rules.db: 0 added, 2 changed, 5 unchanged; dry run, nothing was written\n"
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


def test_file_that_is_named_twice_is_read_once(run: Run, folder: Path) -> None:
    (folder / "same.yaml").symlink_to("rules.yaml")
    code, out, err = run("rules", "apply", "-f", "rules.yaml", "-f", folder / "rules.yaml", "-f", "same.yaml")
    assert (code, err) == (0, "")
    assert "7 added" in out


def test_all_mistakes_are_reported_and_nothing_is_written(run: Run, folder: Path) -> None:
    (folder / "bad.yaml").write_text(
        "rules:\n  - {rule_id: a, dimension: usr, limit: 1, window_seconds: 1}\nplan: {}\n"
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
    command = [sys.executable, "-m", "crestgate", "rules", "apply", "-f", "one.yaml", "--prune"]
    for answer, code in (("n\n", 2), ("\x04", 2), ("y\n", 0)):
        terminal, its_end = os.openpty()
        os.write(terminal, answer.encode())
        environ = {**os.environ, "PYTHONPATH": IMPORT_PATH}
        done = subprocess.run(command, stdin=its_end, capture_output=True, text=True, env=environ, timeout=120)
        os.close(terminal)
        os.close(its_end)
        assert done.returncode == code
        assert done.stdout.startswith("would be deleted  rule client:acme:DEFAULT:GLOBAL\n")
        assert f"Delete 4 rules of SQLite file {folder}/rules.db? [y/N]:" in done.stderr
        assert ("crestgate: not confirmed: nothing was written\n" in done.stderr) == bool(code)
    with closing(open_repository(URL)) as repository:
        assert [record.id for record in repository.list("rule")] == ["orders"]


def test_prune_without_a_terminal_needs_a_yes(run: Run, folder: Path, applied: None) -> None:
    (folder / "one.yaml").write_text("\n".join(RULES.splitlines()[:2]))
    expected = "crestgate: --prune would delete 4 rules not in the files: add --yes, or look with --dry-run\n"
    assert run("rules", "apply", "-f", "one.yaml", "--prune") == (2, "", expected)


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


def test_actor_is_in_the_audit_log(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "operator")
    monkeypatch.setattr("socket.gethostname", lambda: "bastion")
    run("rules", "apply", "-f", "rules.yaml")

    def no_user() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", no_user)
    monkeypatch.setattr("os.getuid", lambda: 4711)
    run("rules", "delete", "trial")
    with closing(open_repository(URL)) as repository:
        newest, *_, oldest = repository.audit(AuditQuery())
    assert (newest.actor, newest.address, newest.action, newest.subject) == (
        *("cli:4711", "bastion", "delete", "rule:trial"),
    )
    assert (oldest.actor, oldest.action) == ("cli:operator", "create")


def test_concurrent_write(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert err.startswith("crestgate: concurrent write")
    assert err.endswith("nothing was written; try again\n")
    assert err.count("\n") == 1


def test_slot_conflict(run: Run, folder: Path, applied: None) -> None:
    (folder / "rival.yaml").write_text(
        RULES.splitlines()[0] + "\n" + RULES.splitlines()[1].replace("orders,", "rival,")
    )
    code, out, err = run("rules", "apply", "-f", "rival.yaml")
    assert (code, out) == (2, "")
    assert "'rival' would be as specific as rule 'orders'" in err


@pytest.mark.parametrize("command", ["get", "delete"])
def test_similar_rule_id_is_suggested(command: str, run: Run, applied: None) -> None:
    expected = "crestgate: there is no rule 'order': did you mean 'orders'?\n"
    assert run("rules", command, "order") == (2, "", expected)


def test_similar_rule_id_of_several_is_suggested(run: Run, applied: None) -> None:
    expected = "crestgate: there is no rule 'trail': did you mean 'trial'?\n"
    assert run("rules", "delete", "orders", "trail") == (2, "", expected)


def test_delete(run: Run, applied: None) -> None:
    assert run("rules", "delete", "orders", "x") == (2, "", "crestgate: there is no rule 'x'\n")
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


def test_as_processes(shell: Run, applied: None) -> None:
    assert shell("rules", "diff", "-f", "rules.yaml").code == 0
    assert shell("rules", "delete", "x") == (2, "", "crestgate: there is no rule 'x'\n")
    code, out, err = shell("rules", "list", "--yaml", PYTHONIOENCODING="ascii")
    assert (code, err) == (0, "")
    assert [rule["rule_id"] for rule in yaml.safe_load(out)] == IDS
