"""Every command finds the rules of `crestgate serve` in ./.crestgate."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.cli.conftest import RULES, Run

ONE = "rules:\n  - {rule_id: one, dimension: user, endpoint_pattern: /one, limit: 1, window_seconds: 86400}\n"


@pytest.fixture
def served(run: Run, folder: Path) -> None:
    """A rule database as created by the service."""
    (folder / "one.yaml").write_text(ONE)
    code, out, _ = run("rules", "apply", "-f", "one.yaml")
    assert code == 0
    assert f"SQLite file {folder}/.crestgate/rules.db" in out


def test_database_and_its_folder_are_created_for_their_owner(served: None, folder: Path) -> None:
    assert (folder / ".crestgate").stat().st_mode & 0o777 == 0o700
    assert (folder / ".crestgate" / "rules.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("rules list", "one"),
        ("rules get one", "rule_id: one"),
        ("rules diff -f one.yaml", "no differences"),
        ("rules delete one", "deleted"),
        ("keys list", "no keys"),
        ("check --user bob --path /one", "allowed"),
        ("reset --user bob --path /one", "one"),
        ("db upgrade", "the schema is at version"),
    ],
)
def test_command_without_a_rules_store(command: str, expected: str, run: Run) -> None:
    code, out, err = run(*command.split())
    assert (code, err) == (0, "")
    assert expected in out


@pytest.mark.usefixtures("served")
def test_database_takes_precedence_over_the_rules_of_the_settings(run: Run, folder: Path) -> None:
    """The service uses both: a note names the rules that are not listed."""
    (folder / "crestgate.yaml").write_text(RULES)
    code, out, err = run("rules", "list")
    assert code == 0
    assert "one" in out
    assert "orders" not in out
    assert "the rules in crestgate.yaml are not included" in err
    assert "orders" in run("rules", "list", "--rules-store", "crestgate.yaml").out
    assert run("check", "--user", "bob", "--path", "/one").code == 0
    assert run("check", "--user", "bob", "--path", "/one").code == 1


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    "command", ["audit", "plans list", "override list", "override bob one 5 --for 2h", "tier bob premium"]
)
def test_note_on_rules_of_the_settings_is_of_rules_only(run: Run, folder: Path, command: str) -> None:
    (folder / "crestgate.yaml").write_text(RULES)
    done = run(*command.split())
    assert (done.code, done.err) == (0, "")


def test_reading_creates_nothing(run: Run, folder: Path) -> None:
    for command in ("rules list", "rules get one", "keys list", "check --user bob"):
        code, out, _ = run(*command.split())
        assert (code, out) == (2, "")
    (folder / "one.yaml").write_text(ONE)
    assert run("rules", "apply", "-f", "one.yaml", "--dry-run").code == 0
    assert [path.name for path in folder.iterdir()] == ["one.yaml"]
