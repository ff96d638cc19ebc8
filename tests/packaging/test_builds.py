"""Builds from source without a compiler or drivers."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import crestgate
from unit.test_package import ROOT, marked_modules, setup_constants


def test_marked_modules_type_check_without_drivers() -> None:
    """A fresh build environment has only mypyc: missing imports of the marked modules must not fail the build."""
    command = [sys.executable, "-m", "mypy", "--no-site-packages", "--cache-dir", os.devnull]
    lenient = setup_constants()["LENIENT"]
    run = subprocess.run([*command, *lenient, *marked_modules()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize(
    "environment", [{"CRESTGATE_PURE": "1"}, {"CC": "/nonexistent/cc"}], ids=["asked", "no compiler"]
)
def test_pure_wheel_is_built_without_a_compiler(environment: dict[str, str], tmp_path: Path) -> None:
    """The other tests use the compiled build; this is the one for machines without a compiler."""
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        ".",
    ]
    subprocess.run(command, check=True, cwd=source, env={**os.environ, **environment, "PYTHONPATH": ""})
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "crestgate/py.typed" in names
    assert [name for name in names if name.endswith(".so")] == []
    code = "import sys; sys.path.insert(0, sys.argv[1]); import crestgate.cli; print(crestgate.cli.version())"
    run = subprocess.run([sys.executable, "-I", "-c", code, str(wheel)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == f"crestgate {crestgate.__version__} (pure Python)"
