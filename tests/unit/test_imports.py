"""What is imported when: a limiter must not slow down the start of a program, and the figures are in the benchmark."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import crestgate

ROOT = Path(__file__).parent.parent.parent
HEAVY = (
    *("asyncio", "concurrent.futures", "ssl", "socket", "sqlite3", "hashlib", "tempfile", "multiprocessing"),
    *("logging.config", "importlib.metadata", "email", "http.client", "urllib.request", "unittest", "json"),
    *(
        "typer",
        "click",
        "rich",
        "yaml",
        "redis",
        "sqlalchemy",
        "msgspec",
        "uvicorn",
        "uvloop",
        "fastapi",
        "flask",
        "django",
    ),
)
"""Modules that cost milliseconds, and that most programs with a limiter do not need for it."""


def loaded(code: str) -> set[str]:
    """The modules that a new process has loaded after this code."""
    program = f"import sys; before = set(sys.modules)\n{code}\nprint('modules', *(set(sys.modules) - before))"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
    return set(run.stdout.splitlines()[-1].split()[1:])


def heavy_in(modules: set[str]) -> list[str]:
    return [name for name in HEAVY if name in modules]


def test_import_loads_nothing_else() -> None:
    modules = loaded("import crestgate")
    assert {name for name in modules if name.partition(".")[0] == "crestgate"} == {"crestgate"}
    assert heavy_in(modules) == []
    assert "typing" not in modules, "it is most of the time that the module itself takes"


def test_version_loads_nothing_heavy() -> None:
    modules = loaded("from crestgate.cli import main; main(['--version'])")
    assert heavy_in(modules) == []
    assert {name for name in modules if name.startswith("crestgate.")} == {"crestgate.cli"}


def test_check_in_memory_loads_nothing_heavy() -> None:
    modules = loaded("from crestgate import Limiter; Limiter('memory://').check('user:42', '5/minute')")
    assert heavy_in(modules) == []
    assert {name for name in modules if name.startswith("crestgate.stores.")} >= {"crestgate.stores.memory"}
    assert not any(
        name.startswith(("crestgate.stores.redis", "crestgate.config", "crestgate.rules")) for name in modules
    )


def test_every_public_name_is_found_at_first_use() -> None:
    loaded("import crestgate\nfor name in crestgate.__all__: assert getattr(crestgate, name).__name__ == name, name")
    loaded("from crestgate import *\nassert Limiter.__module__ == 'crestgate.limiter.limiter'")


def test_dir_lists_all_public_names_before_they_are_used() -> None:
    loaded("import crestgate\nassert set(crestgate.__all__) | {'__version__'} <= set(dir(crestgate))")


def test_type_checkers_see_the_same_names_as_the_interpreter() -> None:
    source = (ROOT / "src" / "crestgate" / "__init__.py").read_text()
    for name, module in crestgate._MODULES.items():
        lines = [line.split(" import ") for line in source.splitlines() if f"from crestgate.{module} import" in line]
        assert any(name in names.split(", ") for _, names in lines), name
    assert sorted(crestgate._MODULES) == crestgate.__all__


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'crestgate' has no attribute 'Limitr'"):
        crestgate.Limitr  # noqa: B018 - reading it is the test
    with pytest.raises(ImportError, match="cannot import name 'Limitr' from 'crestgate'"):
        exec("from crestgate import Limitr")


def test_public_values_can_be_pickled() -> None:
    for value in (crestgate.Limit.parse("5/minute"), crestgate.RequestContext(ip="192.0.2.1"), crestgate.Limiter):
        assert pickle.loads(pickle.dumps(value)) == value
