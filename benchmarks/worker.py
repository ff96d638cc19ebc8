"""One contender in a process of its own, so that nobody's background threads or garbage slow anybody else down.

The order comes as JSON in the first argument. `bytes` measures and leaves. `speed` answers each line that it reads
with one round of checks, until there are no more lines; the driver (turns.py) decides whose turn it is.
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
            say({"bytes": bytes_per_key(contender, order["keys"])})
        else:
            speed(contender, order)
    except Exception as error:  # noqa: BLE001 - the driver decides what a contender that fails means
        say({"error": f"{type(error).__name__}: {error}"})
    os._exit(0)  # some peers keep threads that would hold up an orderly end


def say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def bytes_per_key(contender: Contender, keys: int) -> float:
    """What one more key adds. The keys are made within, so that who keeps them pays for them."""
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
    """Rounds of checks on keys in rotation, each after a few that are not timed."""
    expected: bool = order["admitted"]
    checks: int = order["checks"]
    untimed: int = order["untimed"]
    keys = [f"user:{i}" for i in range(order["keys"])]
    rotation = cycle(keys)
    sweep = contender.sweep
    # Who waits for nothing is timed by what it computes, so that the machine's other work does not count; longer turns
    # would have more of it. Who waits for a server, or may, is timed by the wall.
    clock = time.thread_time_ns if order["setup"]["store"].startswith("memory") else time.perf_counter_ns
    sweep(keys)
    expect(contender, keys[0], expected)
    say({"ready": True})
    for _ in sys.stdin:
        first, batch = list(islice(rotation, untimed)), list(islice(rotation, checks))
        sweep(first)
        begin = clock()
        sweep(batch)
        end = clock()
        say({"nanoseconds": (end - begin) / checks})
    expect(contender, keys[0], expected)
    say({"done": True})


def expect(contender: Contender, key: str, admitted: bool) -> None:
    """A limiter that answers wrongly may be as fast as it likes. (A second look, as a window may have just turned.)"""
    if contender.allows(key) is not admitted and contender.allows(key) is not admitted:
        raise RuntimeError(f"should have {'admitted' if admitted else 'denied'} this check and did not")


if __name__ == "__main__":
    main()
