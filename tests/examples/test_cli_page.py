"""docs/cli.md: its commands are run by a shell, in order, and print what the page shows."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

from unit.cli.conftest import IMPORT_PATH

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"
FILE = re.compile(r"this is `([\w.]+)`:\n\n```text\n([^`]*)```$", re.MULTILINE | re.IGNORECASE)
RUN = re.compile(r"^```sh\n([^`]*)```\n\n```text\n([^`]*)```$", re.MULTILINE)
"""Commands with what they print right behind them; others are not run."""
SHOWN_FOLDER = "/srv/app"
TERMINAL = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS")
"""Variables that change how the commands print."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_page_prints_what_it_shows(tmp_path: Path) -> None:
    page = PAGE.read_text()
    files = FILE.findall(page)
    assert [name for name, _ in files] == ["crestgate.yaml", "limits.yaml"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    command = tmp_path / "bin" / "crestgate"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{IMPORT_PATH}" exec "{sys.executable}" -m crestgate "$@"\n')
    command.chmod(0o755)
    around = {name: value for name, value in os.environ.items() if not name.startswith(("CRESTGATE_", *TERMINAL))}
    around["PATH"] = f"{command.parent}:{os.environ['PATH']}"
    runs = RUN.findall(page)
    assert len(runs) == 12
    for script, expected in runs:
        assert all(line.startswith(("crestgate ", "echo ", "sed ")) for line in script.splitlines()), script
        done = subprocess.run(
            ["sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=around,
            cwd=tmp_path,
            timeout=300,
        )
        printed = done.stdout.replace(str(tmp_path), SHOWN_FOLDER)
        assert doctest.OutputChecker().check_output(expected, printed, FLAGS), f"{script}\n{printed}"
