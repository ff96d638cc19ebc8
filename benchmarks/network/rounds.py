"""Contenders take turns, because a machine's speed drifts and a ratio within one round hardly does.

All are started before the first round, which does not count. In each round every contender has one turn while the
others wait, in rotating order. A contender that fails is left out, with the reason; Crestgate may not fail.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import environments
from benchmarks.network.entry import Entry
from benchmarks.network.load import Turn
from benchmarks.worker_process import ContenderError, Worker

__all__ = ["Pace", "Rounds", "take_turns"]

WARM_UP = 1
"""Rounds that do not count."""


@dataclass(frozen=True)
class Pace:
    """How many rounds, and how long a turn lasts."""

    rounds: int
    seconds: float


@dataclass(frozen=True)
class Rounds:
    """The result of a contest: the same number of turns for each entry, and the entries that were left out."""

    turns: dict[Entry, list[Turn]]
    left_out: list[str]
    seconds: float


def take_turns(root: Path, entries: Sequence[Entry], pace: Pace) -> Rounds:
    turns: dict[Entry, list[Turn]] = {entry: [] for entry in entries}
    left_out: list[str] = []
    started = time.monotonic()
    with ExitStack() as stack:
        workers = [(entry, _start(stack, root, entry, pace)) for entry in entries]

        def ask(entry: Entry, worker: Worker, what: str) -> Any:
            try:
                if what == "turn":
                    worker.go()
                return worker.read(what)
            except ContenderError as error:
                if entry.library == "crestgate" and entry.loop == "asyncio":
                    raise  # a benchmark of Crestgate needs Crestgate
                left_out.append(str(error))
                workers.remove((entry, worker))
                del turns[entry]
                return None

        for entry, worker in tuple(workers):
            ask(entry, worker, "ready")
        for number in range(WARM_UP + pace.rounds):
            begin = number % len(workers)
            for entry, worker in workers[begin:] + workers[:begin]:
                turn = ask(entry, worker, "turn")
                if turn is not None and number >= WARM_UP:
                    turns[entry].append(Turn(**turn))
    return Rounds(turns, left_out, time.monotonic() - started)


def _start(stack: ExitStack, root: Path, entry: Entry, pace: Pace) -> Worker:
    order = {"entry": asdict(entry), "seconds": pace.seconds}
    python = environments.python(root, entry.build)
    return Worker(stack, python, root, "benchmarks.network.worker", order, entry.label)
