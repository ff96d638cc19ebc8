"""The short run of `make chaos`: a few cells of a few seconds each. Their histories are checked as in the long run.

Only what was decided is judged: how long it took depends on what else this machine does. The table of all stores and
faults is in docs/reliability.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from chaos import ROOT

SECONDS = 4.0
SEED = 17


@pytest.mark.parametrize(
    ("store", "fault"),
    [("redis", "dropped-10-percent"), ("shared", "worker-kill"), ("sqlite", "fork"), ("crestgate", "server-kill")],
)
def test_cell_within_its_stated_bounds(store: str, fault: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    cell = [sys.executable, "-m", "chaos", "--store", store, "--fault", fault, "--seed", str(SEED)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [*cell, "--seconds", str(SECONDS), "--json", str(file)],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=400,  # it ends by itself before that
    )
    assert file.exists(), done.stderr
    result = json.loads(file.read_text())
    assert result["violations"] == []
    assert result["decisions"] > 0
    assert result["faults"] > 0
