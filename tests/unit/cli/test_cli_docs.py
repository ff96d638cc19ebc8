"""docs/cli.md: its commands are run by a shell, in order, and print what the page shows."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

from unit.cli.conftest import PLACE

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "cli.md"
FILE = re.compile(r"this is `([\w.]+)`:\n\n```text\n([^`]*)```$", re.MULTILINE | re.IGNORECASE)
RUN = re.compile(r"^```sh\n([^`]*)```\n\n```text\n([^`]*)```$", re.MULTILINE)
"""Commands with what they print right behind them; others are not run."""
SHOWN_FOLDER = "/srv/app"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_the_page_prints_what_it_shows(folder: Path) -> None:
    page = PAGE.read_text()
    files = FILE.findall(page)
    assert [name for name, _ in files] == ["headgate.yaml", "limits.yaml"]
    for name, text in files:
        (folder / name).write_text(text)
    command = folder / "bin" / "headgate"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{PLACE}" exec "{sys.executable}" -m headgate "$@"\n')
    command.chmod(0o755)
    around = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    runs = RUN.findall(page)
    assert len(runs) == 11
    for script, shown in runs:
        assert all(line.startswith(("headgate ", "echo ", "sed ")) for line in script.splitlines()), script
        done = subprocess.run(
            ["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=around, timeout=300
        )
        printed = done.stdout.replace(str(folder), SHOWN_FOLDER)
        assert doctest.OutputChecker().check_output(shown, printed, FLAGS), f"{script}\n{printed}"
