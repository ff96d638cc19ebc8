"""The command line: says what is installed, and looks after the tables of SQL stores."""

from __future__ import annotations

import argparse

import headgate
from headgate.cli.db import add_db
from headgate.core.algorithms import level

__all__ = ["main", "version"]


def version() -> str:
    """The version and how it was built: compiled, or pure Python."""
    compiled = not (level.__file__ or "").endswith(".py")
    return f"headgate {headgate.__version__} ({'compiled' if compiled else 'pure Python'})"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="headgate", description="Rate limiting for Python services.")
    parser.add_argument("--version", action="version", version=version(), help="say what is installed, and how built")
    add_db(parser.add_subparsers(metavar="COMMAND"))
    parsed = parser.parse_args(arguments)
    if "run" in parsed:
        exit_code: int = parsed.run(parsed)
        return exit_code
    parser.print_help()
    return 0
