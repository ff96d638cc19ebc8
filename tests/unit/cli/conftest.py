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

PLACE = str(Path(crestgate.__file__).parent.parent)
"""Where the Crestgate of this process is, installed or in src: for other processes, whatever folder they are in."""
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
"""Of the rules in it."""
URL = "sqlite:///rules.db?timeout_ms=30000"


class Ran(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test is in a folder of its own, with no settings around."""
    for name in list(os.environ):
        if name.startswith("CRESTGATE_") and not name.startswith("CRESTGATE_TEST_"):
            monkeypatch.delenv(name)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process. An error is one line and nothing else, whatever it is."""

    def run_it(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert "secret" not in captured.out + captured.err, "a password is shown"
        return Ran(code, captured.out, captured.err)

    return run_it


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has commands believe that they write to a terminal of a width."""

    def believe(width: int) -> None:
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(width))

    return believe


@pytest.fixture
def shell(folder: Path) -> Run:
    """Runs a command as a process of its own."""

    def run_it(*arguments: object, **environment: str) -> Ran:
        command = [sys.executable, "-m", "crestgate", *map(str, arguments)]
        around = {**os.environ, "PYTHONPATH": PLACE, **environment}
        done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=120, cwd=folder)
        return Ran(done.returncode, done.stdout, done.stderr)

    return run_it


@pytest.fixture
def rules_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Rules in a file, and a database that the environment names."""
    (folder / "rules.yaml").write_text(RULES)
    monkeypatch.setenv("CRESTGATE_RULES_STORE", URL)
    return URL


@pytest.fixture
def applied(run: Run, rules_store: str) -> None:
    """Those rules are in that database."""
    assert run("rules", "apply", "-f", "rules.yaml").code == 0
