"""One command for the whole comparison, because a figure nobody can reproduce is worth nothing.

    python benchmarks/run.py                   the real run: some minutes; writes docs/benchmarks.md and its pictures
    python benchmarks/run.py --only network    one part, or several (--only network --only rpc): machine, network,
                                               service, rpc, latency, peers_services, growth, frameworks, resp, imports
    python benchmarks/run.py --install         only what is measured and compared with: the rest then starts at once
    python benchmarks/run.py --quick           a trial of some minutes; writes the same pages into .bench-venv/quick/

This file makes the two environments (Crestgate compiled, and as plain Python) and goes on in the first of them, where
the drawing library is, with main.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = (
    "machine",
    "network",
    "service",
    "rpc",
    "latency",
    "peers_services",
    "growth",
    "frameworks",
    "leases",
    "resp",
    "imports",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare Crestgate with other rate limiters for Python.")
    parser.add_argument("--quick", action="store_true", help="a short trial that leaves docs/ alone")
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be given several times")
    parser.add_argument("--install", action="store_true", help="install what is needed, and measure nothing")
    arguments = parser.parse_args()
    only = arguments.only or []
    more = ["--quick"] * arguments.quick + [word for part in only for word in ("--only", part)]
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    from benchmarks import children, environments
    from benchmarks.rpc import h2load
    from benchmarks.service import wrk

    wanted = set(only or PARTS)
    if wanted & {"service", "frameworks", "growth"} and not wrk.is_there():
        sys.exit(wrk.MISSING)  # now, and not after all the others
    if wanted & {"rpc", "growth"} and not h2load.is_there():
        sys.exit(h2load.MISSING)
    children.exit_on_signals()
    print("installing Crestgate twice, and what it is compared with, into .bench-venv/", flush=True)
    try:
        environments.prepare(ROOT)
    except environments.InstallError as error:
        sys.exit(str(error))
    if arguments.install:
        _install_peers()
        return
    python = str(environments.python(ROOT, "compiled"))
    # The same process goes on, so whoever stops it stops everything.
    os.execve(python, [python, "-m", "benchmarks.main", *more], children.environment())


def _install_peers() -> None:
    """The services in other languages; the part that they are in tells why one of them is not there."""
    from benchmarks.peer_services import install

    for program in (install.RATELIMIT, install.GUBERNATOR):
        try:
            install.install_program(ROOT, program)
        except install.NotInstalledError as error:
            print(error)


if __name__ == "__main__":
    main()
