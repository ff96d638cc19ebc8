"""`crestgate db upgrade`."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from crestgate import Limiter
from crestgate.cli import main
from crestgate.errors import StoreError
from crestgate.rules import Actor, open_repository
from crestgate.rules.port import Edit
from crestgate.stores.sql.upgrade import MIGRATIONS
from unit.cli.conftest import Run

NEXT_MIGRATION = """
from alembic import op
revision = "0003"
down_revision = "0002"
def upgrade():
    op.execute("ALTER TABLE crestgate_locks ADD COLUMN note TEXT")
"""


def install_next_release(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Simulate a later release with one more migration."""
    migrations = folder / "migrations"
    shutil.copytree(MIGRATIONS, migrations)
    (migrations / "versions" / "v0003.py").write_text(NEXT_MIGRATION)
    monkeypatch.setattr("crestgate.stores.sql.upgrade.MIGRATIONS", migrations)
    for module in ("upgrade", "version"):
        monkeypatch.setattr(f"crestgate.stores.sql.{module}.VERSION", "0003")


def output(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_upgrade_creates_the_tables_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "counters.db"
    assert main(["db", "upgrade", "--store", f"sqlite:///{file}"]) == 0
    assert output(capsys) == (f"SQLite file {file}: the tables were created, schema version 0002\n", "")
    assert main(["db", "upgrade", "--store", f"sqlite:///{file}"]) == 0
    assert output(capsys) == (f"SQLite file {file}: the schema is at version 0002 already\n", "")
    with sqlite3.connect(file) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    counters = {"crestgate_counters", "crestgate_log", "crestgate_locks", "crestgate_version"}
    rules = {"crestgate_revisions", "crestgate_records", "crestgate_audit", "crestgate_writes"}
    service = {"crestgate_usage", "crestgate_usage_subjects", "crestgate_usage_turns", "crestgate_idempotency"}
    assert tables - {"sqlite_sequence"} == counters | rules | service


def test_upgrade_runs_the_missing_migrations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/counters.db"
    main(["db", "upgrade", "--store", url])
    output(capsys)
    install_next_release(monkeypatch, tmp_path)
    with sqlite3.connect(tmp_path / "counters.db") as connection:
        connection.execute("INSERT INTO crestgate_locks (name, version, holder, expires_us) VALUES (x'61', 1, 'me', 2)")
    with pytest.raises(
        StoreError, match=f"schema version 0002, .*: bring it .* `crestgate db upgrade --store '{url}'`"
    ):
        Limiter(url)
    assert main(["db", "upgrade", "--store", url]) == 0
    assert output(capsys)[0].endswith("counters.db: the schema was upgraded from version 0002 to 0003\n")
    with sqlite3.connect(tmp_path / "counters.db") as connection:
        assert connection.execute("SELECT * FROM crestgate_locks").fetchall() == [(b"a", 1, "me", 2, None)]
    Limiter(url).close()


def test_rules_of_schema_0001_are_kept(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That schema had no nonces of writes."""
    with monkeypatch.context() as patches:
        for module in ("upgrade", "version"):
            patches.setattr(f"crestgate.stores.sql.{module}.VERSION", "0001")
        assert run("db", "upgrade", "--rules-store", "sqlite:///rules.db").code == 0
    with sqlite3.connect(folder / "rules.db") as connection:
        connection.execute("INSERT INTO crestgate_revisions VALUES (x'6367', 1, 0, 0)")
        connection.execute(
            "INSERT INTO crestgate_records VALUES (x'6367', 'rule', x'61', 1, 1, 0, NULL, NULL, NULL, 1, 1, "
            """'{"rule_id":"a","dimension":"user","limit":1,"window_seconds":1}')"""
        )
    assert "from version 0001 to 0002" in run("db", "upgrade", "--rules-store", "sqlite:///rules.db").out
    with closing(open_repository(f"sqlite:///{folder}/rules.db")) as repository:
        changes = repository.changes(0)
        assert changes is not None
        assert [record.id for record in changes.records] == ["a"]
        repository.write([Edit("rule", "a", None)], Actor("alice"))
        changes = repository.changes(changes.revision)
        assert changes is not None
        assert (changes.revision, changes.complete, changes.deleted) == (2, False, [("rule", "a")])


def test_store_from_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRESTGATE_STORE", f"sqlite:///{tmp_path}/counters.db")
    assert main(["db", "upgrade"]) == 0
    assert "were created" in output(capsys)[0]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "which store?"),
        ("memory://", "is not a SQL database"),
        ("mysql://u:secret@127.0.0.1:1/db", "MySQL at 127.0.0.1:1/db: Can't connect"),
        ("mysql://u:secret@h/db?what=1", "unknown option 'what'"),
        ("sqlite:////no/such/folder/file", "unable to open"),
    ],
)
def test_usage_errors_are_one_line(
    url: str, problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CRESTGATE_STORE", raising=False)
    assert main(["db", "upgrade", "--store", url]) == 2
    out, error = output(capsys)
    assert out == ""
    assert problem in error
    assert error.count("\n") == 1
    assert "secret" not in error


def test_newer_schema_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "counters.db"
    main(["db", "upgrade", "--store", f"sqlite:///{file}"])
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE crestgate_version SET version_num = '0099'")
    output(capsys)
    assert main(["db", "upgrade", "--store", f"sqlite:///{file}"]) == 2
    assert "version 0099, and this Crestgate needs version 0002: it was made by a newer Crestgate" in output(capsys)[1]


def test_unknown_schema_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "counters.db"
    main(["db", "upgrade", "--store", f"sqlite:///{file}"])
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE crestgate_version SET version_num = '0000'")
    output(capsys)
    assert main(["db", "upgrade", "--store", f"sqlite:///{file}"]) == 2
    error = output(capsys)[1]
    assert "version 0000, which this Crestgate does not know, and it needs version 0002: they were made by" in error
    assert error.count("\n") == 1


def test_rules_store_is_upgraded_too(run: Run, folder: Path) -> None:
    code, out, err = run("db", "upgrade", "--store", "sqlite:///a.db", "--rules-store", "sqlite:///b.db")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"SQLite file {folder}/{name}.db: the tables were created, schema version 0002" for name in "ab"
    ]
    same = run("db", "upgrade", "--store", "sqlite:///a.db", "--rules-store", "sqlite:///a.db?prefix=other")
    assert same.out == f"SQLite file {folder}/a.db: the schema is at version 0002 already\n", "upgraded once"


def test_all_databases_of_the_settings_are_upgraded(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "crestgate.yaml").write_text("store: redis://127.0.0.1:1/0\nrules_store: sqlite:///rules.db\n")
    assert run("db", "upgrade").out == f"SQLite file {folder}/rules.db: the tables were created, schema version 0002\n"
    monkeypatch.setenv("CRESTGATE_STORE", "[sqlite:///a.db, sqlite:///b.db]")
    assert [line.split(":")[0][-4:] for line in run("db", "upgrade").out.splitlines()] == ["a.db", "b.db", "s.db"]
    (folder / "other.yaml").write_text("rules_store: redis://127.0.0.1:1/0\n")
    monkeypatch.setenv("CRESTGATE_STORE", "sqlite:///c.db")
    assert run("db", "upgrade", "--config", "other.yaml").out.startswith(f"SQLite file {folder}/c.db: ")
    assert run("db", "upgrade", "--store", "sqlite:///d.db").out.count("\n") == 1, "only the named database"
    monkeypatch.delenv("CRESTGATE_STORE")
    assert "is not a SQL database" in run("db", "upgrade", "--config", "other.yaml").err


@pytest.mark.parametrize(
    ("option", "command"), [("--store", ["reset", "k", "-l", "1/s"]), ("--rules-store", ["rules", "list"])]
)
def test_upgrade_hint_names_the_option_of_the_database(
    option: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    main(["db", "upgrade", option, url])
    output(capsys)
    install_next_release(monkeypatch, tmp_path)
    assert main([*command, option, url]) == 2
    assert output(capsys)[1].endswith(f": bring it up to date with `crestgate db upgrade {option} '{url}'`\n")
    assert main(["db", "upgrade", option, url]) == 0
