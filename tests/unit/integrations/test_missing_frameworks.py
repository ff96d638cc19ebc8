"""An integration whose framework is not installed names the extra to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import crestgate

PROGRAM = """
import importlib, sys

FRAMEWORKS = ("django", "fastapi", "flask", "grpc")

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name in FRAMEWORKS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
for name in FRAMEWORKS:
    try:
        importlib.import_module(f"crestgate.integrations.{name}")
    except ImportError as error:
        print(error)
"""


def test_missing_framework_error_names_the_extra() -> None:
    where = {**os.environ, "PYTHONPATH": str(Path(crestgate.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=where, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        f"crestgate.integrations.{name} needs {name}: pip install '.[{name}]' in a clone of Crestgate"
        for name in ("django", "fastapi", "flask", "grpc")
    ], done.stderr
