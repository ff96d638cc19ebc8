"""Child processes that look like ones on another system: see simulation/sitecustomize.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

__all__ = ["environment_of", "run_on"]

SIMULATION = Path(__file__).parent / "simulation"
TIMEOUT = 300.0


def environment_of(system: str) -> dict[str, str]:
    """The variables that make a Python process look like one on this system."""
    folders = [str(SIMULATION), *(folder for folder in sys.path if folder)]
    return {"CRESTGATE_TEST_SYSTEM": system, "PYTHONPATH": os.pathsep.join(folders)}


def run_on(system: str, program: str, folder: Path, *arguments: str) -> list[str]:
    """The lines that a program prints there. Its errors are errors of the test."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
    run = subprocess.run(
        [sys.executable, "-c", dedent(program), *arguments],
        cwd=folder,
        env={**environ, **environment_of(system)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()
