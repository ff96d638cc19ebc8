"""`headgate db upgrade`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from headgate.cli import main


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_it_makes_the_tables_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "counters.db"
    assert main(["db", "upgrade", "--store", f"sqlite:///{file}"]) == 0
    assert said(capsys) == (f"SQLite file {file}: the tables were made, schema version 0001\n", "")
    assert main(["db", "upgrade", "--store", f"sqlite:///{file}"]) == 0
    assert said(capsys) == (f"SQLite file {file}: the schema is at version 0001 already\n", "")
    with sqlite3.connect(file) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"headgate_counters", "headgate_log", "headgate_locks", "headgate_version"}


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
    assert "version 0099, and this Headgate needs version 0001: it was made by a newer Headgate" in said(capsys)[1]


def test_a_database_of_an_unknown_version_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "counters.db"
    main(["db", "upgrade", "--store", f"sqlite:///{file}"])
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE headgate_version SET version_num = '0000'")
    said(capsys)
    assert main(["db", "upgrade", "--store", f"sqlite:///{file}"]) == 2
    error = said(capsys)[1]
    assert "version 0000, which this Headgate does not know, and it needs version 0001: they were made by" in error
    assert error.count("\n") == 1


def test_an_action_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["db"])
    assert ended.value.code == 2
    assert "ACTION" in said(capsys)[1]
