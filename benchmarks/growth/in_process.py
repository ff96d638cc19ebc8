"""Checks on few and on many keys, and under short and long chains: this file, run as a program, prints all turns.

    python -m benchmarks.growth.in_process keys memory ROUNDS LARGEST
    python -m benchmarks.growth.in_process chain shared ROUNDS

Keys are taken in an order drawn at random, so that the processor cannot guess what is next. The bare dict beside them
has the same keys in the same order, and adds one to what it has: what finding a key costs is the machine's.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

from benchmarks import machine

__all__ = ["CHAINS", "KEYS"]

KEYS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
CHAINS = (1, 2, 4, 8)
CHECKS = {"memory": 2_000, "shared": 400}
"""In a turn, after a fifth as many that are not timed."""
LIMIT = "1000000/day"

Sweep = Callable[[Sequence[str]], None]
Times = dict[str, dict[str, list[float]]]
"""Microseconds for a check of every round, by contender and size."""


def keys(store: str, rounds: int, largest: int) -> Times:
    """All sizes are there at once, and have their turns in each round."""
    sizes = [size for size in KEYS if size <= largest]
    with tempfile.TemporaryDirectory(dir=machine.memory_folder()) as folder:
        sweeps: dict[tuple[str, int], tuple[Sweep, Any]] = {}
        for size in sizes:
            names = [f"user:{number}" for number in range(size)]
            random.Random(size).shuffle(names)
            kinds = {"crestgate": _checks(_url(store, folder, size), LIMIT), "dict": _counts()}
            for kind, sweep in kinds.items():
                sweep(names)
                sweeps[kind, size] = (sweep, cycle(names))
        gc.freeze()  # millions of objects that stay: not to be looked at in every collection
        return _turns(sweeps, CHECKS[store], rounds)


def chain(store: str, rounds: int) -> Times:
    """Chains of so many limits on one key each."""
    with tempfile.TemporaryDirectory(dir=machine.memory_folder()) as folder:
        sweeps: dict[tuple[str, int], tuple[Sweep, Any]] = {}
        names = [f"user:{number}" for number in range(1_000)]
        for length in CHAINS:
            limits = "; ".join(f"{1_000_000 + part}/day" for part in range(length))
            sweep = _checks(_url(store, folder, 20_000, length), limits)
            sweep(names)
            sweeps["crestgate", length] = (sweep, cycle(names))
        return _turns(sweeps, CHECKS[store], rounds)


def _turns(sweeps: dict[tuple[str, int], tuple[Sweep, Any]], checks: int, rounds: int) -> Times:
    times: dict[tuple[str, int], list[float]] = {place: [] for place in sweeps}
    places = list(sweeps)
    for done in range(rounds + 1):  # the first does not count
        begin = done % len(places)
        for place in places[begin:] + places[:begin]:
            sweep, rotation = sweeps[place]
            first, batch = list(islice(rotation, checks // 5)), list(islice(rotation, checks))
            sweep(first)
            began = time.thread_time_ns()
            sweep(batch)
            taken = time.thread_time_ns() - began
            if done:
                times[place].append(taken / checks / 1000)
    found: Times = {}
    for (kind, size), mine in times.items():
        found.setdefault(kind, {})[str(size)] = mine
    return found


def _url(store: str, folder: str, size: int, number: int = 0) -> str:
    space = 2 * size + 1_000
    if store == "memory":
        return f"memory://?max_keys={space}"
    return f"shared://{folder}/{size}-{number}?max_keys={space}"


def _checks(url: str, limits: str) -> Sweep:
    from crestgate import Limiter

    check = Limiter(url).bind(limits).check
    assert check("user:0").allowed

    def sweep(names: Sequence[str]) -> None:
        for name in names:
            check(name)

    return sweep


def _counts() -> Sweep:
    counts: dict[str, int] = {}
    count = counts.get

    def sweep(names: Sequence[str]) -> None:
        for name in names:
            counts[name] = count(name, 0) + 1

    return sweep


if __name__ == "__main__":
    task, where, *numbers = sys.argv[1:]
    times = keys(where, *map(int, numbers)) if task == "keys" else chain(where, int(numbers[0]))
    print(json.dumps(times))
