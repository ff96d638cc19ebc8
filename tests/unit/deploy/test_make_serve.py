"""`make serve`: what it starts, and that it leaves the tree as it was."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent
OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "PORT")
"""What the make that runs the tests would tell this one."""


@pytest.mark.parametrize(("given", "port"), [([], 8080), (["PORT=9000"], 9000)])
def test_serves_on_loopback_at_the_port_that_is_asked_for(given: list[str], port: int) -> None:
    outside = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    said = subprocess.run(
        ["make", "-n", "serve", *given], cwd=ROOT, env=outside, capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines()[-1] == f"env HEADGATE_SERVER__HTTP=127.0.0.1:{port} .venv/bin/headgate serve"


def test_what_it_makes_is_ignored_by_git() -> None:
    ignored = (ROOT / ".gitignore").read_text().split()
    assert {".headgate/", ".venv/", "build/", "*.egg-info/"} <= {*ignored}
