"""The command line: `headgate`, or `python -m headgate`.

What it does is in app.py and needs the extra `cli`. Here is what works without it: to say which version this is, and
what to install.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import headgate
from headgate.core.algorithms import level

__all__ = ["main", "version"]

NEEDED = ("typer", "rich")


def version() -> str:
    """The version and how it was built: compiled, or pure Python."""
    compiled = not (level.__file__ or "").endswith(".py")
    return f"headgate {headgate.__version__} ({'compiled' if compiled else 'pure Python'})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:
        sys.stdout.write(f"{version()}\n")
        return 0
    try:
        from headgate.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        sys.stderr.write(f"headgate: the package {error.name!r} is missing: pip install 'headgate[cli]'\n")
        return 2
    return run(given)
