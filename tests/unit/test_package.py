"""The package as a whole: its public names, what it imports, how it was built."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import headgate
from headgate.cli import main, version

ROOT = Path(__file__).parent.parent.parent


def test_public_names() -> None:
    assert headgate.__all__ == [
        "AsyncBound",
        "AsyncLimiter",
        "AsyncReservation",
        "Bound",
        "ConfigError",
        "Decision",
        "HeadgateError",
        "Limit",
        "Limiter",
        "PressureEvent",
        "RateLimitExceeded",
        "RequestContext",
        "Reservation",
        "StoreClosed",
        "StoreError",
        "Verdict",
        "register_algorithm",
    ]
    assert [name for name in headgate.__all__ if not hasattr(headgate, name)] == []


def test_the_build_under_test_is_the_expected_one() -> None:
    """The same tests run on both builds, and each run says which one it means."""
    expected = os.environ.get("HEADGATE_EXPECT")
    assert expected is None or version() == f"headgate {headgate.__version__} ({expected})"


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version()


def test_without_arguments_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "--version" in capsys.readouterr().out


def test_the_core_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import headgate.core.limit, headgate.core.decision; "
        "print(headgate.core.limit.Limit.parse('5/minute')); "
        "print([m for m in sys.modules if 'site-packages' in (getattr(sys.modules[m], '__file__', '') or '')])"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(ROOT / "src")], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == ["5/minute", "[]"]


def test_the_hot_modules_are_compiled_also_where_no_driver_is_installed() -> None:
    """In a fresh environment there is nothing but mypyc; what the hot modules only import must not stop them."""
    setup = ast.parse((ROOT / "setup.py").read_text())
    given = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in setup.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    command = [sys.executable, "-m", "mypy", "--no-site-packages", "--cache-dir", os.devnull]
    run = subprocess.run(
        [*command, *given["LENIENT"], *given["HOT"]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize(
    "environment", [{"HEADGATE_PURE": "1"}, {"CC": "/nonexistent/cc"}], ids=["asked", "no compiler"]
)
def test_a_pure_wheel_is_built_without_a_compiler(environment: dict[str, str], tmp_path: Path) -> None:
    """The compiled build is what the other tests run on; this is the one for machines that cannot compile."""
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
    assert "headgate/py.typed" in names
    assert [name for name in names if name.endswith(".so")] == []
    code = "import sys; sys.path.insert(0, sys.argv[1]); import headgate.cli; print(headgate.cli.version())"
    run = subprocess.run([sys.executable, "-I", "-c", code, str(wheel)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == f"headgate {headgate.__version__} (pure Python)"
