"""Starts the service of this clone: compiled if `make compile` was run since the last change, else from the source.

python -m tools.serve .venv-serve 127.0.0.1:8080 127.0.0.1:8081
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.compile import STAMP, is_fresh
from tools.environment import ROOT

__all__ = ["command"]

GAIN = "single checks about 1.4 times and batches about 2 times faster"
"""Processor time of the service, from the source ÷ compiled: wrk on 32 connections, and batches of 100. HTTP is most of
a single check; what decides it is 4 times faster, as docs/benchmarks.md shows for the library."""


def command(environment: Path) -> tuple[str, list[str], dict[str, str]]:
    """What to tell, what to run, and with which variables beside the usual."""
    python = environment.absolute() / "bin" / "python"
    if is_fresh(environment):
        return "Running the compiled build.", [str(python.with_name("crestgate")), "serve"], {}
    is_old = (environment / STAMP).exists()
    line = "Running from the source" + (", which has changed since it was compiled." if is_old else ".")
    line += f" `make compile` takes about five minutes and makes {GAIN}."
    return line, [str(python), "-m", "crestgate", "serve"], {"PYTHONPATH": str(ROOT / "src")}


def main() -> None:
    environment, http, grpc = sys.argv[1:]
    line, arguments, variables = command(Path(environment))
    print(line, flush=True)
    variables |= {"CRESTGATE_SERVER__HTTP": http, "CRESTGATE_SERVER__GRPC": grpc}
    os.execve(arguments[0], arguments, {**os.environ, **variables})


if __name__ == "__main__":
    main()
