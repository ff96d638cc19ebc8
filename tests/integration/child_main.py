"""Runs a program in a child: `python -m integration.child_main MODULE.FUNCTION JSON-ARGUMENTS`.

A child that is wedged says where, and ends by itself.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
from typing import Any

__all__ = ["hear", "run", "say"]

LONGEST_LIFE = 1800.0


def say(word: object) -> None:
    """Tell the test something."""
    os.write(1, json.dumps(word).encode() + b"\n")


def hear() -> Any:
    """What the test says next; None when it has gone away."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def run(program: str, arguments: dict[str, Any]) -> None:
    module, _, function = program.rpartition(".")
    getattr(importlib.import_module(f"integration.{module}"), function)(**arguments)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LONGEST_LIFE, exit=True)
    run(sys.argv[1], json.loads(sys.argv[2]))
