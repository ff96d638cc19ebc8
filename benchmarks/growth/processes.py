"""Several processes that check in one shared memory, or each in its own: this file, run as a program, is one of them.

It tells when it is ready, begins with a line of standard input, and prints how many checks it made, and in how much
processor time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.children import child

__all__ = ["PROCESSES", "held"]

PROCESSES = (1, 2, 4, 8)
KEYS = 1_000
AT_ONCE = 200
ANSWER_SECONDS = 30.0


def held(python: Path, root: Path, store: str, count: int, turns: int, seconds: float) -> list[dict[str, float]]:
    """The checks per second of all processes together, and the processor time of one check, of every turn."""
    found = []
    with ExitStack() as stack:
        command = [str(python), "-m", "benchmarks.growth.processes", store, str(seconds)]
        pipe = subprocess.PIPE
        crowd = [stack.enter_context(child(command, folder=root, stdin=pipe, stdout=pipe)) for _ in range(count)]
        lines = [_lines(process) for process in crowd]
        for answers in lines:
            next(answers)
        for turn in range(turns + 1):  # the first does not count
            for process in crowd:
                assert process.stdin is not None
                os.write(process.stdin.fileno(), b"go\n")
            done = [json.loads(next(answers)) for answers in lines]
            if turn:
                checks = sum(one["checks"] for one in done)
                used = sum(one["processor"] for one in done)
                rate = sum(one["checks"] / one["seconds"] for one in done)
                found.append({"per_second": rate, "processor": used * 1e6 / checks})
    return found


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    assert process.stdout is not None
    yield from process.stdout


def check_for(store: str, seconds: float) -> None:
    from crestgate import Limiter

    check = Limiter(store).bind("1000000000/day").check
    names = [f"user:{number}" for number in range(KEYS)]
    for name in names:
        assert check(name).allowed
    print("ready", flush=True)
    for _ in sys.stdin:
        checks, used, began = 0, time.process_time(), time.perf_counter()
        end = began + seconds
        while time.perf_counter() < end:
            at = checks % KEYS
            for name in names[at : at + AT_ONCE]:
                check(name)
            checks += AT_ONCE
        taken = time.perf_counter() - began
        print(json.dumps({"checks": checks, "seconds": taken, "processor": time.process_time() - used}), flush=True)


if __name__ == "__main__":
    check_for(sys.argv[1], float(sys.argv[2]))
