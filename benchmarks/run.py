"""One command for the whole comparison, because a figure nobody can reproduce is worth nothing.

    python benchmarks/run.py                   the real run: some minutes; writes docs/benchmarks.md and its pictures
    python benchmarks/run.py --only network    one part: machine, network, rules, imports, service, frameworks, rpc or
                                               resp; the other pages stay as they are
    python benchmarks/run.py --quick           a trial of a minute or two; writes the same pages into .bench-venv/quick/

This file makes the two environments (Crestgate compiled, and as plain Python) and goes on in the first of them, where
the drawing library is, with main.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare Crestgate with other rate limiters for Python.")
    parser.add_argument("--quick", action="store_true", help="a short trial that leaves docs/ alone")
    parser.add_argument(
        "--only",
        choices=("machine", "network", "rules", "imports", "service", "frameworks", "rpc", "resp"),
        help="one part: within a machine, across a network, how many rules there are, what an import costs, the "
        "service over HTTP, applications of web frameworks, gRPC, or Redis clients",
    )
    arguments = parser.parse_args()
    more = ["--quick"] * arguments.quick + ["--only", arguments.only] * bool(arguments.only)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    from benchmarks import children, environments
    from benchmarks.rpc import h2load
    from benchmarks.service import wrk

    if arguments.only in (None, "service", "frameworks") and not wrk.is_there():
        sys.exit(wrk.MISSING)  # now, and not after all the others
    if arguments.only in (None, "rpc") and not h2load.is_there():
        sys.exit(h2load.MISSING)
    children.exit_on_signals()
    print("installing Crestgate twice, and what it is compared with, into .bench-venv/", flush=True)
    try:
        environments.prepare(ROOT)
    except environments.InstallError as error:
        sys.exit(str(error))
    python = str(environments.python(ROOT, "compiled"))
    # The same process goes on, so whoever stops it stops everything.
    os.execve(python, [python, "-m", "benchmarks.main", *more], children.environment())


if __name__ == "__main__":
    main()
