"""`crestgate check`, `peek` and `reset` with the default store."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.cli.conftest import Run

SETTINGS = """\
plans: {gold: 10/hour burst 20}
rules:
  - {rule_id: orders, dimension: user, endpoint_pattern: "/orders/*", limit: 2, window_seconds: 3600}
"""


def test_commands_share_the_default_store(shell: Run, run: Run, folder: Path) -> None:
    limited = ("user:42", "--limit", "1/hour")
    assert [shell("check", *limited)[::2], shell("check", *limited)[::2]] == [(0, ""), (1, "")]
    assert run("peek", *limited).code == 1
    assert run("reset", *limited).code == 0
    assert run("check", *limited, "--store", f"shared://{folder}/.crestgate/counters").code == 0
    assert run("peek", *limited).code == 1
    assert (folder / ".crestgate").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (folder / ".crestgate").iterdir()] == ["counters"]


def test_settings_without_a_store_use_the_default(run: Run, folder: Path) -> None:
    (folder / "crestgate.yaml").write_text(SETTINGS)
    options = ("--user", "bob", "--path", "/orders/1")
    assert [run("check", *options).code for _ in range(3)] == [0, 0, 1]
    assert sorted(path.name for path in folder.iterdir()) == [".crestgate", "crestgate.yaml"]


def test_folder_may_have_any_name(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strange = folder / "50% of #1? \u00e4"
    strange.mkdir()
    monkeypatch.chdir(strange)
    assert [run("check", "k", "-l", "1/hour").code for _ in range(2)] == [0, 1]
    assert (strange / ".crestgate" / "counters").is_file()


def test_existing_folder_is_not_changed(run: Run, folder: Path) -> None:
    (folder / ".crestgate").mkdir(mode=0o755)
    assert run("check", "k", "-l", "1/hour").code == 0
    assert (folder / ".crestgate").stat().st_mode & 0o777 == 0o755


def test_folder_creation_failure_is_reported(run: Run, folder: Path) -> None:
    (folder / ".crestgate").write_text("")
    assert run("check", "k", "-l", "1/hour") == (
        2,
        "",
        f"crestgate: {folder}/.crestgate is not a folder: move it away, or set store and rules_store\n",
    )


@pytest.mark.parametrize("command", ["check", "peek", "reset"])
@pytest.mark.parametrize("where", ["file", "environment", "option"])
def test_memory_store_is_refused(
    command: str, where: str, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "file":
        (folder / "crestgate.yaml").write_text("store: memory://\n")
    elif where == "environment":
        monkeypatch.setenv("CRESTGATE_STORE", "memory://")
    option = ["--store", "memory://"] if where == "option" else []
    code, out, err = run(command, "k", "-l", "3/s", *option)
    assert (code, out) == (2, "")
    assert err == (
        "crestgate: which store? Write --store URL, or set CRESTGATE_STORE: counters in memory:// are lost when "
        "this command ends\n"
    )
    assert not (folder / ".crestgate").exists()
