"""The parts of `make test`, with a `make` that does what the test says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.run_tests import Runner, run_parts
from tools.summary import summary

PASSED = 'echo "3 passed in 1.00s"'


def run(tmp_path: Path, missing: list[str] | None = None, **parts: str) -> tuple[Runner, list[str]]:
    """The parts, each a line of shell; those that are not given pass."""
    stub = tmp_path / "make"
    cases = "\n".join(f"{name.replace('_', '-')}) {line} ;;" for name, line in parts.items())
    stub.write_text(f'#!/bin/bash\necho "$@"\ncase $2 in\n{cases}\n*) {PASSED} ;;\nesac\n')
    stub.chmod(0o755)
    runner = Runner(str(stub), tmp_path)
    runner.logs.mkdir()
    run_parts(runner, without_compiled=False, compiling=missing or [])
    return runner, list(summary(runner.results, 75, "logs"))


def verdicts(runner: Runner) -> dict[str, str]:
    return {result.part: result.verdict for result in runner.results}


def test_every_part_runs_and_is_titled(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runner, lines = run(tmp_path, source='printf "...  [ 50%%]\n...  [100%%]\n"; ' + PASSED)
    assert verdicts(runner) == dict.fromkeys(["check", "doctest", "source", "compile", "compiled"], "passed")
    assert lines[-2] == "15 passed, 0 failed"
    output = capfd.readouterr().out
    assert "##### 1/5 check:" in output
    assert "##### 5/5 compiled:" in output
    assert "...  [ 50%]  0:0" in output  # with the time


def test_failed_part_does_not_stop_the_others(tmp_path: Path) -> None:
    runner, lines = run(tmp_path, check="exit 2")
    assert verdicts(runner)["check"] == "FAILED"
    assert verdicts(runner)["compiled"] == "passed"
    assert lines[-1].startswith("make test FAILED")


@pytest.mark.parametrize("line", ["kill -9 $$", "true"], ids=["by a signal", "without a word"])
def test_tests_that_ended_without_a_result_failed(line: str, tmp_path: Path) -> None:
    runner, lines = run(tmp_path, source=line)
    assert verdicts(runner)["source"] == "FAILED"
    assert lines[-2] == "12 passed, 1 failed"
    assert lines[-1].endswith(": source.")


def test_compiled_tests_do_not_run_if_the_compiler_failed(tmp_path: Path) -> None:
    runner, _ = run(tmp_path, compile_for_tests="echo cc: not like this; exit 1")
    assert verdicts(runner)["compile"] == "FAILED"
    assert verdicts(runner)["compiled"] == "NOT RUN"


def test_everything_is_tested_from_the_source_without_a_compiler(tmp_path: Path) -> None:
    runner, lines = run(tmp_path, missing=["gcc", "libc6-dev"])
    assert verdicts(runner) == {"check": "passed", "doctest": "passed", "source": "passed", "compiled": "NOT RUN"}
    assert "source COMPILED_ONLY=" in (runner.logs / "source").read_text()
    assert any("apt-get install --no-install-recommends gcc libc6-dev" in line for line in lines)
