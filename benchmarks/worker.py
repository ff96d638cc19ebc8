"""One contender in its own process, so that background threads or garbage of one do not slow down another.

The order comes as JSON in the first argument. `bytes` measures and exits. `speed` runs one round of checks for each
line of standard input, until there are no more lines; the driver (turns.py) decides the order of turns.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import tracemalloc
from itertools import cycle, islice
from typing import Any, NoReturn

from benchmarks.candidates import Contender, Setup, make

__all__: list[str] = []

SETTLE_SECONDS = 0.1
"""Long enough for the clean-up that `limits` does in a thread 10 ms after a hit."""


def main() -> NoReturn:
    order = json.loads(sys.argv[1])
    try:
        contender = make(Setup(**order["setup"]))
        if order["task"] == "bytes":
            send({"bytes": bytes_per_key(contender, order["keys"])})
        else:
            speed(contender, order)
    except Exception as error:  # noqa: BLE001 - the driver decides what a contender that fails means
        send({"error": f"{type(error).__name__}: {error}"})
    os._exit(0)  # some peers have threads that would block a normal exit


def send(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def bytes_per_key(contender: Contender, keys: int) -> float:
    """The memory per key. The keys are created inside, so that a limiter that stores them is charged for them."""
    contender.allows("warm:up")
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for i in range(keys):
        contender.sweep((f"user:{i}",))
    time.sleep(SETTLE_SECONDS)
    gc.collect()
    return (tracemalloc.get_traced_memory()[0] - before) / keys


def speed(contender: Contender, order: dict[str, Any]) -> None:
    """Rounds of checks on keys in rotation, each after a few untimed checks."""
    expected: bool = order["admitted"]
    checks: int = order["checks"]
    untimed: int = order["untimed"]
    keys = [f"user:{i}" for i in range(order["keys"])]
    rotation = cycle(keys)
    sweep = contender.sweep
    # Contenders that never wait are measured in processor time, so that other load of the machine does not count;
    # longer turns would have more of it. Contenders that may wait for a server are measured in wall time.
    clock = time.thread_time_ns if order["setup"]["store"].startswith("memory") else time.perf_counter_ns
    sweep(keys)
    expect(contender, keys[0], expected)
    send({"ready": True})
    for _ in sys.stdin:
        first, batch = list(islice(rotation, untimed)), list(islice(rotation, checks))
        sweep(first)
        begin = clock()
        sweep(batch)
        end = clock()
        send({"nanoseconds": (end - begin) / checks})
    expect(contender, keys[0], expected)
    send({"done": True})


def expect(contender: Contender, key: str, admitted: bool) -> None:
    """Check the decisions: wrong ones make the speed meaningless. (Tried twice, as a window may have just ended.)"""
    if contender.allows(key) is not admitted and contender.allows(key) is not admitted:
        raise RuntimeError(f"should have {'admitted' if admitted else 'denied'} this check and did not")


if __name__ == "__main__":
    main()
