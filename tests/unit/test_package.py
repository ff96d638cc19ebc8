"""The package as a whole: its public names, what it imports, how it was built."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import crestgate
from crestgate.cli import main, version

ROOT = Path(__file__).parent.parent.parent


def test_public_names() -> None:
    assert crestgate.__all__ == [
        "AsyncBound",
        "AsyncLimiter",
        "AsyncReservation",
        "Bound",
        "ConfigError",
        "CrestgateError",
        "Decision",
        "Limit",
        "Limiter",
        "LimiterCall",
        "Migration",
        "ObservedCheck",
        "Observer",
        "PressureEvent",
        "RateLimitExceeded",
        "RequestContext",
        "Reservation",
        "StoreClosedError",
        "StoreError",
        "StoreStatus",
        "Verdict",
        "register_algorithm",
    ]
    assert [name for name in crestgate.__all__ if not hasattr(crestgate, name)] == []


def test_build_is_the_expected_one() -> None:
    """The same tests run on both builds, and each run names the build it expects."""
    expected = os.environ.get("CRESTGATE_EXPECT")
    assert expected is None or version() == f"crestgate {crestgate.__version__} ({expected})"


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version()


def test_without_arguments_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "--version" in capsys.readouterr().out


def test_core_needs_only_the_standard_library() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import crestgate.core.limit, crestgate.core.decision; "
        "print(crestgate.core.limit.Limit.parse('5/minute')); "
        "print([m for m in sys.modules if 'site-packages' in (getattr(sys.modules[m], '__file__', '') or '')])"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(ROOT / "src")], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == ["5/minute", "[]"]


def setup_constants() -> dict[str, Any]:
    """The constants of setup.py, read without running it."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def marked_modules() -> list[str]:
    """The modules with the marker of compiled modules, in any line."""
    marker = setup_constants()["MARKER"]
    sources = (ROOT / "src").rglob("*.py")
    return sorted(str(path.relative_to(ROOT)) for path in sources if marker in path.read_text().splitlines())


def test_compile_marker_is_the_first_line() -> None:
    """setup.py reads the first line only: a marker further down would be ignored."""
    marker = setup_constants()["MARKER"]
    assert [path for path in marked_modules() if (ROOT / path).read_text().splitlines()[0] != marker] == []
    assert len(marked_modules()) > 60


@pytest.mark.skipif(os.environ.get("CRESTGATE_EXPECT") != "compiled", reason="needs the compiled build")
def test_marked_modules_are_compiled() -> None:
    names = [path.removeprefix("src/").removesuffix(".py").replace("/", ".") for path in marked_modules()]
    files = {name: importlib.import_module(name).__file__ or "" for name in names}
    assert {name: file for name, file in files.items() if not file.endswith(".so")} == {}
