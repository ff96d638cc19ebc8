"""Contenders take turns in short rounds, because a machine's speed drifts and a ratio within one round does not.

Every contender runs in its own process (worker.py) and waits there for its turn; in each round every contender has one,
in rotating order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.candidates import Setup
from benchmarks.worker_process import ContenderError, Worker

__all__ = ["Pace", "bytes_per_key", "take_turns"]

FEWEST_ROUNDS = 7
UNTIMED_PART = 5
"""Before the timed checks of a turn there are a fifth as many to get back into step."""


@dataclass(frozen=True)
class Pace:
    """How much is measured: rounds (fewer when the seconds run out), and the checks of Crestgate and of a peer in each.

    They are the same number where the two are near enough; against calls over a socket Crestgate makes more of them,
    so that everybody's turn takes some milliseconds and nobody is timed with cold caches only.
    """

    rounds: int
    our_checks: int
    their_checks: int
    keys: int
    seconds: float

    def checks(self, setup: Setup) -> int:
        return self.our_checks if setup.library == "crestgate" else self.their_checks


def take_turns(
    python: Path, root: Path, setups: Sequence[Setup], pace: Pace, *, admitted: bool
) -> dict[Setup, list[float] | str]:
    """For each contender the nanoseconds per check of every round, or why it could not take part."""
    times: dict[Setup, list[float] | str] = {}
    with ExitStack() as stack:
        workers: list[tuple[Setup, Worker, list[float]]] = []
        for setup in setups:  # all are started before the first is waited for
            order = {"task": "speed", "setup": asdict(setup), "admitted": admitted}
            order |= {"checks": pace.checks(setup), "untimed": pace.checks(setup) // UNTIMED_PART, "keys": pace.keys}
            workers.append((setup, _worker(stack, python, root, order), []))
        for setup, worker, mine in tuple(workers):
            try:
                worker.read("ready")
            except ContenderError as error:
                times[setup] = str(error)
                workers.remove((setup, worker, mine))
            else:
                times[setup] = mine
        deadline = time.monotonic() + pace.seconds
        for done in range(pace.rounds):
            if done >= FEWEST_ROUNDS and time.monotonic() > deadline:
                break
            begin = done % len(workers) if workers else 0
            for _, worker, mine in workers[begin:] + workers[:begin]:
                worker.go()
                mine.append(worker.read("nanoseconds"))
        for _, worker, _ in workers:
            worker.finish()
            worker.read("done")
    return times


def bytes_per_key(python: Path, root: Path, setup: Setup, keys: int) -> float:
    """What one key costs this contender in memory, measured in a fresh process."""
    with ExitStack() as stack:
        worker = _worker(stack, python, root, {"task": "bytes", "setup": asdict(setup), "keys": keys})
        return float(worker.read("bytes"))


def _worker(stack: ExitStack, python: Path, root: Path, order: dict[str, Any]) -> Worker:
    name = f"{order['setup']['library']} {order['setup']['algorithm']}"
    return Worker(stack, python, root, "benchmarks.worker", order, name)
