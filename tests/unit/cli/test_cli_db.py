"""`headgate db upgrade`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from headgate import Limiter
from headgate.cli import main
from headgate.errors import StoreError
from unit.cli.conftest import Run


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_it_makes_the_tables_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "counters.db"
    assert main(["db", "upgrade", "--store", f"sqlite:///{file}"]) == 0
    assert said(capsys) == (f"SQLite file {file}: the tables were made, schema version 0003\n", "")
    assert main(["db", "upgrade", "--store", f"sqlite:///{file}"]) == 0
    assert said(capsys) == (f"SQLite file {file}: the schema is at version 0003 already\n", "")
    with sqlite3.connect(file) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    counters = {"headgate_counters", "headgate_log", "headgate_locks", "headgate_version"}
    rules = {"headgate_revisions", "headgate_records", "headgate_audit"}
    service = {"headgate_usage", "headgate_usage_subjects", "headgate_usage_turns", "headgate_once"}
    assert tables - {"sqlite_sequence"} == counters | rules | service


def test_it_brings_tables_of_an_older_version_up_to_date(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/counters.db"
    with monkeypatch.context() as older:
        older.setattr("headgate.stores.sql.upgrade.VERSION", "0001")
        main(["db", "upgrade", "--store", url])
    said(capsys)
    with sqlite3.connect(tmp_path / "counters.db") as connection:
        connection.execute("INSERT INTO headgate_locks (name, version, holder, expires_us) VALUES (x'61', 1, 'me', 2)")
    with pytest.raises(StoreError, match=f"schema version 0001, .*: bring it .* `headgate db upgrade --store '{url}'`"):
        Limiter(url)
    assert main(["db", "upgrade", "--store", url]) == 0
    assert said(capsys)[0].endswith("counters.db: the schema was brought from version 0001 to 0003\n")
    with sqlite3.connect(tmp_path / "counters.db") as connection:
        assert connection.execute("SELECT * FROM headgate_locks").fetchall() == [(b"a", 1, "me", 2)]
    Limiter(url).close()


def test_the_store_may_come_from_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_STORE", f"sqlite:///{tmp_path}/counters.db")
    assert main(["db", "upgrade"]) == 0
    assert "were made" in said(capsys)[0]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "which store?"),
        ("memory://", "names no SQL database"),
        ("mysql://u:secret@127.0.0.1:1/db", "MySQL at 127.0.0.1:1/db: Can't connect"),
        ("mysql://u:secret@h/db?what=1", "unknown option 'what'"),
        ("sqlite:////no/such/folder/file", "unable to open"),
    ],
)
def test_wrong_use_is_one_sentence(
    url: str, problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADGATE_STORE", raising=False)
    assert main(["db", "upgrade", "--store", url]) == 2
    out, error = said(capsys)
    assert out == ""
    assert problem in error
    assert error.count("\n") == 1
    assert "secret" not in error


def test_a_newer_database_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "counters.db"
    main(["db", "upgrade", "--store", f"sqlite:///{file}"])
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE headgate_version SET version_num = '0099'")
    said(capsys)
    assert main(["db", "upgrade", "--store", f"sqlite:///{file}"]) == 2
    assert "version 0099, and this Headgate needs version 0003: it was made by a newer Headgate" in said(capsys)[1]


def test_a_database_of_an_unknown_version_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "counters.db"
    main(["db", "upgrade", "--store", f"sqlite:///{file}"])
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE headgate_version SET version_num = '0000'")
    said(capsys)
    assert main(["db", "upgrade", "--store", f"sqlite:///{file}"]) == 2
    error = said(capsys)[1]
    assert "version 0000, which this Headgate does not know, and it needs version 0003: they were made by" in error
    assert error.count("\n") == 1


def test_the_rules_store_has_tables_too(run: Run, folder: Path) -> None:
    code, out, err = run("db", "upgrade", "--store", "sqlite:///a.db", "--rules-store", "sqlite:///b.db")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"SQLite file {folder}/{name}.db: the tables were made, schema version 0003" for name in "ab"
    ]
    same = run("db", "upgrade", "--store", "sqlite:///a.db", "--rules-store", "sqlite:///a.db?prefix=other")
    assert same.out == f"SQLite file {folder}/a.db: the schema is at version 0003 already\n", "once is enough"


def test_all_databases_of_the_settings(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "headgate.yaml").write_text("store: redis://127.0.0.1:1/0\nrules_store: sqlite:///rules.db\n")
    assert run("db", "upgrade").out == f"SQLite file {folder}/rules.db: the tables were made, schema version 0003\n"
    monkeypatch.setenv("HEADGATE_STORE", "[sqlite:///a.db, sqlite:///b.db]")
    assert [line.split(":")[0][-4:] for line in run("db", "upgrade").out.splitlines()] == ["a.db", "b.db", "s.db"]
    (folder / "other.yaml").write_text("rules_store: redis://127.0.0.1:1/0\n")
    monkeypatch.setenv("HEADGATE_STORE", "sqlite:///c.db")
    assert run("db", "upgrade", "--config", "other.yaml").out.startswith(f"SQLite file {folder}/c.db: ")
    assert run("db", "upgrade", "--store", "sqlite:///d.db").out.count("\n") == 1, "only what is named"
    monkeypatch.delenv("HEADGATE_STORE")
    assert "names no SQL database" in run("db", "upgrade", "--config", "other.yaml").err


@pytest.mark.parametrize(
    ("option", "command"), [("--store", ["peek", "k", "-l", "1/s"]), ("--rules-store", ["rules", "list"])]
)
def test_advice_names_the_option_that_the_database_is_given_by(
    option: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    with monkeypatch.context() as older:
        older.setattr("headgate.stores.sql.upgrade.VERSION", "0001")
        main(["db", "upgrade", option, url])
    said(capsys)
    assert main([*command, option, url]) == 2
    assert said(capsys)[1].endswith(f": bring it up to date with `headgate db upgrade {option} '{url}'`\n")
    assert main(["db", "upgrade", option, url]) == 0
