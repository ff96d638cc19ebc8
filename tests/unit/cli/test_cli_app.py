"""The command line application: help, version, usage errors, exceptions."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import crestgate
from crestgate.cli import version
from crestgate.cli.app import run as run_app
from crestgate.cli.output import escape_control, format_duration
from unit.cli.conftest import IMPORT_PATH, Run

COMMANDS = (
    *("check", "peek", "reset", "explain", "rules list", "rules get", "rules apply", "rules delete", "rules diff"),
    *("config check", "db upgrade", "openapi", "top", "stats", "status", "audit", "tier"),
    *("override set", "override undo", "override list", "plans list", "plans get", "plans set", "plans delete"),
    *("keys create", "keys list", "keys rotate", "keys revoke"),
)


def test_version_is_printed(run: Run, shell: Run) -> None:
    assert run("--version") == (0, f"{version()}\n", "")
    assert run_app(["--version"]) == 0
    assert shell("--version") == (0, f"{version()}\n", "")


def test_help_names_all_commands(run: Run) -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert run("-h") == run() == (0, out, "")
    for command in COMMANDS:
        assert command.split()[0] in out
    assert "..." not in out.partition("Commands:")[2], "a help text is truncated"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, run: Run) -> None:
    code, out, err = run(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: crestgate {command} ")
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("chek user:42", "No such command 'chek'."),
        ("rules lst", "No such command 'lst'."),
        ("db upgrade --stroe x", "No such option"),
        ("check k -l 3/s --cost many", "Invalid value for '--cost': "),
        ("rules apply", "Missing option '--file'"),
        ("rules get", "Missing argument 'ID'"),
        ("db upgrade redis://u:secret@h/0", "(redis://***@h/0)"),
    ],
)
def test_usage_error_is_one_line(arguments: str, expected: str, run: Run) -> None:
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("crestgate: ")
    assert expected in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_missing_extra_names_what_to_install(missing: str, shell: Run, folder: Path) -> None:
    code = (
        "import sys; sys.modules[sys.argv[1]] = None; from crestgate.cli import main; "
        "print(main(['--version'])); print(main(['check', 'k'])); print(main([]))"
    )
    command, environ = [sys.executable, "-c", code, missing], {**os.environ, "PYTHONPATH": IMPORT_PATH}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [version(), "0", "2", "2"]
    expected = f"crestgate: the package {missing!r} is missing: pip install '.[cli]' in a clone of Crestgate\n"
    assert done.stderr == expected * 2


def test_another_missing_package_is_not_blamed_on_the_extra(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delitem(sys.modules, "crestgate.cli.app")
    monkeypatch.setitem(sys.modules, "crestgate.cli.checks", None)
    with pytest.raises(ModuleNotFoundError, match=r"crestgate\.cli\.checks"):
        crestgate.cli.main(["check"])


def test_unexpected_error_is_one_line(run: Run, shell: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(option: object) -> None:
        raise RuntimeError("oh")

    monkeypatch.setattr("crestgate.cli.checks.load_settings_for", fails)
    code, out, err = run("check", "k", "-l", "3/s")
    assert (code, out) == (2, "")
    assert err == "crestgate: RuntimeError: oh (a bug in Crestgate: `python -X dev -m crestgate` shows where)\n"


def test_interrupt_exits_quietly(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(option: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("crestgate.cli.checks.load_settings_for", interrupted)
    assert run("check", "k", "-l", "3/s") == (130, "", "")


def test_log_warnings_are_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def warns(option: object) -> None:
        logging.getLogger("crestgate").warning("mind the %s", "gap")
        raise KeyboardInterrupt

    monkeypatch.setattr("crestgate.cli.checks.load_settings_for", warns)
    assert run("check", "k", "-l", "3/s").err == "crestgate: mind the gap\n"
    assert not logging.getLogger("crestgate").handlers


def test_closed_pipe_exits_quietly(folder: Path) -> None:
    rules = ", ".join(
        f"{{rule_id: r{n}, dimension: ip, identifier: 10.0.{n // 256}.{n % 256}, limit: 1, window_seconds: 1}}"
        for n in range(3000)
    )
    (folder / "crestgate.yaml").write_text(f"rules: [{rules}]\n")
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "crestgate", "rules", "list"]
    environ = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    with subprocess.Popen(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=folder, env=environ
    ) as process:
        os.close(writing)
        os.close(reading)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (141, "")


def test_control_characters_are_escaped() -> None:
    assert escape_control("a\x1b[31mb\nc") == r"a\x1b[31mb\nc"
    assert escape_control("Zoë 数") == "Zoë 数"


def test_durations_are_short() -> None:
    assert [format_duration(s) for s in (0, 0.0042, 5.25, 60, 5400, 90000)] == [
        *("0 s", "0.0042 s", "5.25 s", "1 min", "1 h 30 min", "1 d 1 h"),
    ]


@pytest.mark.parametrize(
    ("group", "command"), [("rules", "apply"), ("keys", "revoke"), ("config", "check"), ("db", "upgrade")]
)
def test_group_without_command_shows_its_help(group: str, command: str, run: Run) -> None:
    code, out, err = run(group)
    assert (code, out) == (2, "")
    assert err.startswith(f"Usage: crestgate {group} ")
    assert f"  {command} " in err
    assert run(group, "--help").out == err


@pytest.mark.parametrize(("words", "expected"), [("crestgate ov", "override"), ("crestgate rules l", "list")])
def test_completion_succeeds(shell: Run, words: str, expected: str) -> None:
    environment = {"_CRESTGATE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = shell(**environment)
    assert (done.code, done.err) == (0, "")
    assert expected in done.out.split()


def test_completion_of_rules_reads_the_database_of_this_folder(shell: Run, run: Run, folder: Path) -> None:
    rule = "{rule_id: orders, dimension: user, limit: 3, window_seconds: 60}"
    (folder / "rules.yaml").write_text(f"rules: [{rule}]\n")
    assert run("rules", "apply", "-f", "rules.yaml").code == 0
    words = {"COMP_WORDS": "crestgate override set acme or", "COMP_CWORD": "4"}
    done = shell(_CRESTGATE_COMPLETE="complete_bash", **words)
    assert (done.code, done.out.split(), done.err) == (0, ["orders"], "")


def test_unknown_completion_instruction_is_an_error(shell: Run) -> None:
    assert shell(_CRESTGATE_COMPLETE="nonsense_bash").code not in (0, 141)
