"""`crestgate rules`: which repository is used, and its errors."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from crestgate.errors import StoreError
from crestgate.rules.editor import Editor
from servers.process import GivenServer
from servers.redis import RedisServer
from unit.cli.conftest import RULES, Run

pytestmark = pytest.mark.usefixtures("rules_store")


def test_files_are_read_and_never_written(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRESTGATE_RULES_STORE")
    assert run("rules", "list").err.startswith("crestgate: which rules? Write --rules-store URL")
    (folder / "crestgate.yaml").write_text(RULES)
    assert run("rules", "get", "orders").code == 0
    assert run("rules", "get", "orders", "--rules-store", "rules.yaml").code == 0
    assert run("rules", "diff", "-f", "rules.yaml").code == 0
    code, out, err = run("rules", "delete", "orders")
    assert (code, out) == (2, "")
    assert "crestgate.yaml are read-only: edit the file, which is reloaded when it changes" in err
    assert err.count("\n") == 1
    (folder / "one.yaml").write_text("plans: {new: 1/s}\n")
    assert "are read-only" in run("rules", "apply", "-f", "one.yaml", "--config", "crestgate.yaml").err


def test_rule_in_a_file_has_no_timestamps(run: Run, folder: Path) -> None:
    rule = json.loads(run("rules", "get", "orders", "--rules-store", "rules.yaml", "--json").out)
    assert (rule["created_at"], rule["updated_at"]) == (None, None)


def test_stored_rule_that_cannot_be_read_can_be_deleted(run: Run, folder: Path, applied: None) -> None:
    with sqlite3.connect(folder / "rules.db") as connection:
        connection.execute("UPDATE crestgate_records SET body = '{\"limit\": -1}' WHERE id = x'6f7264657273'")
    for command in ("get orders", "diff -f rules.yaml", "apply -f rules.yaml"):
        code, out, err = run("rules", *command.split())
        assert (code, out) == (2, "")
        assert "rule 'orders': limit: must be " in err
        assert err.endswith("; `crestgate rules delete orders` removes this rule\n")
        assert err.count("crestgate rules delete") == 1
    for options in ((), ("--json",), ("--yaml", "--all")):
        code, out, err = run("rules", "list", *options)
        assert code == 2, "the others are listed, and this is reported"
        assert ("trial" in out, "orders" in out) == (True, False)
        assert "rule 'orders': limit: must be " in err
    assert run("rules", "delete", "orders").code == 0
    assert run("rules", "diff", "-f", "rules.yaml").code == 1


def test_settings_name_the_rules_store(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRESTGATE_RULES_STORE")
    (folder / "my.yaml").write_text("rules_store: sqlite:///mine.db?timeout_ms=30000\n")
    assert run("rules", "apply", "-f", "rules.yaml", "--config", "my.yaml").code == 0
    assert (folder / "mine.db").exists()
    monkeypatch.setenv("CRESTGATE_CONFIG", "my.yaml")
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
def test_missing_file_is_not_created(arguments: str, run: Run, folder: Path) -> None:
    expected = (
        f"crestgate: SQLite file {folder}/ruels.db: there is no such file: correct its name, or create it with "
        "`crestgate rules apply` or `crestgate db upgrade --rules-store 'sqlite:///ruels.db'`\n"
    )
    assert run(*arguments.split(), "--rules-store", "sqlite:///ruels.db") == (2, "", expected)
    assert [path.name for path in folder.iterdir()] == ["rules.yaml"]


def test_missing_file_is_not_created_by_a_dry_run(run: Run, folder: Path) -> None:
    code, out, err = run("rules", "apply", "-f", "rules.yaml", "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith(f"would be created  SQLite file {folder}/rules.db\nwould be added    rule orders\n")
    assert out.endswith(
        f"SQLite file {folder}/rules.db: 7 added, 0 changed, 0 unchanged; dry run, nothing was written\n"
    )
    assert not (folder / "rules.db").exists()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite://", "name the file"),
        ("sqlite:///:memory:", "name the file"),
        ("memory://", "rules cannot be stored at 'memory://'"),
        ("redis://u:secret@127.0.0.1:1/0", "127.0.0.1:1"),
        ("mysql://u:secret@127.0.0.1:1/db", "MySQL at 127.0.0.1:1/db"),
        ("nowhere.yaml", "nowhere.yaml: there is no such file"),
    ],
)
def test_unopenable_databases(url: str, expected: str, run: Run) -> None:
    code, out, err = run("rules", "list", "--rules-store", url)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1


def test_database_failure(run: Run, applied: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Editor) -> Any:
        raise StoreError("the database has gone away")

    monkeypatch.setattr(Editor, "readable_rules", fail)
    assert run("rules", "list") == (2, "", "crestgate: the database has gone away\n")


def test_redis(run: Run, redis_server: RedisServer | GivenServer, folder: Path) -> None:
    joint = "&" if "?" in redis_server.url else "?"
    url = f"{redis_server.url}{joint}timeout_ms=30000&prefix=cli-{folder.name}"
    assert run("rules", "apply", "-f", "rules.yaml", "--rules-store", url).code == 0
    assert run("rules", "diff", "-f", "rules.yaml", "--rules-store", url) == (0, "no differences, 7 compared\n", "")
    assert run("rules", "delete", "trial", "--rules-store", url).code == 0
    assert run("rules", "diff", "-f", "rules.yaml", "--rules-store", url).code == 1
