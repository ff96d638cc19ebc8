"""`make serve`: the command, and a clean tree afterwards."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent
OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "PORT", "GRPC_PORT")
"""Variables that an outer make would pass to this one."""


@pytest.mark.parametrize(
    ("given", "http", "grpc"),
    [([], 8080, 8081), (["PORT=9000"], 9000, 8081), (["PORT=9000", "GRPC_PORT=9001"], 9000, 9001)],
)
def test_serves_on_loopback_at_the_given_ports(given: list[str], http: int, grpc: int) -> None:
    outside = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    done = subprocess.run(
        ["make", "-n", "serve", *given], cwd=ROOT, env=outside, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == f"python3 -m tools.serve .venv-serve 127.0.0.1:{http} 127.0.0.1:{grpc}"


def test_created_files_are_ignored_by_git() -> None:
    ignored = (ROOT / ".gitignore").read_text().split()
    assert {".crestgate/", ".venv/", ".venv-serve/", "build/", "*.egg-info/"} <= {*ignored}
