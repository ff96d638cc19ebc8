"""Running commands as a shell does: exit code, stdout and stderr."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import crestgate
from crestgate.cli import main

IMPORT_PATH = str(Path(crestgate.__file__).parent.parent)
"""The import path of this process's Crestgate, installed or in src, for child processes in any folder."""
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
"""Ids of the rules in RULES."""
URL = "sqlite:///rules.db?timeout_ms=30000"


class CommandResult(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., CommandResult]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run every test in its own folder, without settings."""
    for name in list(os.environ):
        if name.startswith("CRESTGATE_") and not name.startswith("CRESTGATE_TEST_"):
            monkeypatch.delenv(name)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, and checks that any error is a single line."""

    def run_it(*arguments: object) -> CommandResult:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert "secret" not in captured.out + captured.err, "a password is printed"
        return CommandResult(code, captured.out, captured.err)

    return run_it


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes commands write to a simulated terminal of a given width."""

    def simulate_terminal(width: int) -> None:
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(width))

    return simulate_terminal


@pytest.fixture
def shell(folder: Path) -> Run:
    """Runs a command in a child process."""

    def run_it(*arguments: object, **environment: str) -> CommandResult:
        command = [sys.executable, "-m", "crestgate", *map(str, arguments)]
        environ = {**os.environ, "PYTHONPATH": IMPORT_PATH, **environment}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, cwd=folder)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    return run_it


@pytest.fixture
def rules_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A rules file, and a rules database named in the environment."""
    (folder / "rules.yaml").write_text(RULES)
    monkeypatch.setenv("CRESTGATE_RULES_STORE", URL)
    return URL


@pytest.fixture
def applied(run: Run, rules_store: str) -> None:
    """Applies the rules file to the database."""
    assert run("rules", "apply", "-f", "rules.yaml").code == 0
