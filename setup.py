"""Compiles the hot modules with mypyc when a C compiler is there; the same source runs uncompiled when not.
tools/build_backend.py tells which.

A module is compiled if its first line is `# mypyc: compile`.

`CRESTGATE_PURE=1` asks for the uncompiled build. `crestgate --version` tells which one is installed.
`CRESTGATE_OPT_LEVEL` (0 to 3, default 3) is how much the C compiler optimises: 0 takes half of the time, for tests,
which compile often and measure nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also without the build backend, which finds it
from tools.build_backend import reason_for_pure_build

MARKER = "# mypyc: compile"
"""The first line of each module that is compiled."""

LENIENT = ["--ignore-missing-imports", "--no-warn-unused-ignores", "--no-warn-return-any", "--follow-imports=silent"]
"""The drivers of the stores are extras, and need not be there in a build: what is only imported by the hot modules may
then make no sense. `make check` is strict, and has them all."""


def marked() -> list[str]:
    """The modules to compile, by their first line."""
    return sorted(str(path) for path in Path("src").rglob("*.py") if _first_line(path) == MARKER)


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().rstrip()


def opt_level() -> str:
    """How much the C compiler is to optimise."""
    level = os.environ.get("CRESTGATE_OPT_LEVEL", "") or "3"
    if level not in ("0", "1", "2", "3"):
        sys.exit(f"CRESTGATE_OPT_LEVEL must be 0, 1, 2 or 3, not {level!r}")
    return level


def extensions() -> list[object]:
    if {"egg_info", "dist_info", "sdist"} & set(sys.argv):
        return []  # only asked for the metadata or the source: nothing to compile yet
    if reason := reason_for_pure_build():
        print(f"crestgate: pure Python build, slower and with the same decisions: {reason}", file=sys.stderr)
        return []
    level = opt_level()
    print(f"crestgate: compiling the hot modules with mypyc and -O{level}", file=sys.stderr)
    try:
        from mypyc.build import mypycify

        arguments = [*LENIENT, *marked()]
        return list(mypycify(arguments, opt_level=level, debug_level="0", strip_asserts=False, multi_file=True))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - mypyc leaves when it finds a mistake
        print(f"crestgate: mypyc failed ({error}); pure Python build instead", file=sys.stderr)
        return []


setup(ext_modules=extensions())
