"""The command line: `crestgate`, or `python -m crestgate`.

app.py has the commands and needs the extra `cli`. Without it, `--version` works, and errors say what to install.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

import crestgate

__all__ = ["main", "version"]

REQUIRED_PACKAGES = ("typer", "rich")


def version() -> str:
    """The version and how it was built: compiled, or pure Python."""
    # Its file says so; importing it would take most of the time of `--version`.
    spec = PathFinder.find_spec("level", [f"{folder}/core/algorithms" for folder in crestgate.__path__])
    compiled = spec is not None and not (spec.origin or "").endswith(".py")
    return f"crestgate {crestgate.__version__} ({'compiled' if compiled else 'pure Python'})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    command = sys.argv[1:] if arguments is None else list(arguments)
    if command == ["--version"]:
        sys.stdout.write(f"{version()}\n")
        return 0
    try:
        from crestgate.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in REQUIRED_PACKAGES:
            raise
        from crestgate.errors import install_hint

        sys.stderr.write(f"crestgate: the package {error.name!r} is missing: {install_hint('cli')}\n")
        return 2
    return run(command)
