"""Runs a program in a child: `python -m integration.child_main MODULE.FUNCTION JSON-ARGUMENTS`.

A child that hangs dumps its traceback and exits.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
from typing import Any

__all__ = ["receive", "run", "send"]

MAX_LIFETIME_SECONDS = 1800.0


def send(message: object) -> None:
    """Send a message to the test."""
    os.write(1, json.dumps(message).encode() + b"\n")


def receive() -> Any:
    """The next message from the test; None at end of input."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def run(program: str, arguments: dict[str, Any]) -> None:
    module, _, function = program.rpartition(".")
    getattr(importlib.import_module(f"integration.{module}"), function)(**arguments)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(MAX_LIFETIME_SECONDS, exit=True)
    run(sys.argv[1], json.loads(sys.argv[2]))
