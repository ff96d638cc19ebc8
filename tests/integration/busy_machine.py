"""The default policy on a machine whose cores are all busy: a healthy store on it gives no free passes.

A check that the failure policy decides is a free pass. Here the store is never away, so there should be none. Not part
of `make test`: beside other tests, even the server may not run for longer than the deadline. By hand, in tests/:

    PYTHONPATH=../src:. python -m integration.busy_machine 60
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

from integration.child_process import ChildProcess
from servers.redis import RedisServer

LOADS: dict[str, dict[str, Any]] = {
    "redis asyncio": {"program": "busy_programs.load_of_tasks"},
    "redis uvloop": {"program": "busy_programs.load_of_tasks", "loop": "uvloop"},
    "redis threads": {"program": "busy_programs.load_of_threads", "threads": 16},
    "shared memory asyncio": {"program": "busy_programs.load_of_tasks"},
    "shared memory threads": {"program": "busy_programs.load_of_threads", "threads": 16},
}
Start = Callable[..., ChildProcess]


def run_load(start: Start, name: str, url: str, seconds: float, measure: float) -> dict[str, Any]:
    """The report of one load, with as many busy processes beside it as there are cores, and at least two."""
    busy = [start("load_programs.keep_busy", seconds=seconds + 100) for _ in range(max(os.cpu_count() or 2, 2))]
    load = start(url=url, seconds=seconds, measure=measure, **LOADS[name])
    for child in (*busy, load):
        assert child.receive() == "ready"
    load.send("go")
    report: dict[str, Any] = load.receive(seconds + 300)
    for child in busy:
        child.send("enough")
    return report


def main(seconds: float) -> None:
    """The long run."""
    for name in LOADS:
        with ExitStack() as stack:

            def start(program: str, **arguments: object) -> ChildProcess:
                return stack.enter_context(ChildProcess(program, **arguments))

            if name.startswith("redis"):
                url = stack.enter_context(RedisServer()).url
            else:
                url = f"shared://{stack.enter_context(TemporaryDirectory())}/counters"
            sys.stdout.write(f"{name}: {run_load(start, name, url, seconds, 3.0)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
