"""Breaks every store in every way while several processes use it, and checks the recorded history."""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
from pathlib import Path

from chaos.network import enter_namespace

__all__: list[str] = []


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--store", help="one store; with --all, only its cells")
    parser.add_argument("--fault", help="one fault; with --all, only its cells")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="of load, for each cell")
    parser.add_argument("--all", action="store_true", help="all cells, one after the other; writes docs/reliability.md")
    parser.add_argument("--results", type=Path, default=Path(".chaos"), help="the folder of the results of --all")
    parser.add_argument("--jobs", type=int, default=1, help="cells of --all that run at the same time, each apart")
    parser.add_argument("--resume", action="store_true", help="run only the cells that have no result there")
    parser.add_argument(
        "--soak", type=float, metavar="SECONDS", help="a steady load on healthy stores, and a virtual day"
    )
    parser.add_argument("--report", action="store_true", help="only write docs/reliability.md, from the results")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the journals of the clients")
    parser.add_argument("--json", type=Path, help="a file for the result of a cell")
    arguments = parser.parse_args()
    if arguments.all or arguments.report:
        from chaos.whole_run import run_all

        return run_all(arguments)
    if arguments.soak is None and not (arguments.store and arguments.fault):
        parser.error("name a --store and a --fault, or use --all, --soak or --report")
    enter_namespace(sys.argv[1:])
    if arguments.soak is not None:
        from chaos.soak import run_soak

        return run_soak(arguments.soak, arguments.results)
    faulthandler.dump_traceback_later(arguments.seconds * 3 + 240, exit=True)
    from chaos.cell import run_cell

    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    result = run_cell(arguments.store, arguments.fault, arguments.seed, arguments.seconds, arguments.keep)
    text = json.dumps(result.as_dict(), indent=1)
    if arguments.json is not None:
        arguments.json.write_text(text)
    print(text)
    return 1 if result.violations or result.slow else 0


if __name__ == "__main__":
    sys.exit(main())
