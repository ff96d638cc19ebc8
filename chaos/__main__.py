"""The command line: see `python -m chaos --help`."""

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
    parser.add_argument("--store", help="one store")
    parser.add_argument("--fault", help="one fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="of load, for each cell")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the journals of the clients")
    parser.add_argument("--json", type=Path, help="a file for the result")
    arguments = parser.parse_args()
    enter_namespace(sys.argv[1:])
    faulthandler.dump_traceback_later(arguments.seconds * 3 + 300, exit=True)
    from chaos.cell import run_cell

    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    result = run_cell(arguments.store, arguments.fault, arguments.seed, arguments.seconds, arguments.keep)
    text = json.dumps(result.as_dict(), indent=1)
    if arguments.json is not None:
        arguments.json.write_text(text)
    print(text)
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
