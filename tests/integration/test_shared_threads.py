"""Threads that share a hot key admit exactly what the limit says, at default settings and on a busy machine.

Nobody may miss a deadline behind a lock that is held for microseconds: the failure policy would then let it pass.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.children import PATIENCE, Child

Start = Callable[..., Child]
Report = Callable[[str], None]

CHECKS = 20_000
"""By all threads of all processes together."""


@pytest.mark.parametrize(("threads", "processes"), [(1, 8), (8, 1), (32, 1), (64, 1), (8, 4), (64, 8)])
def test_threads_on_a_hot_key(threads: int, processes: int, counters: Path, start: Start, report: Report) -> None:
    busy = [start("hammers.keep_busy", seconds=2 * PATIENCE) for _ in range(os.cpu_count() or 1)]
    rounds = max(CHECKS // (threads * processes), 20)
    children = [
        start(
            "hammers.hammer",
            url=f"shared://{counters}",
            limits=["10/day"],
            keys=1,
            rounds=rounds,
            threads=threads,
            seed=seed,
        )
        for seed in range(processes)
    ]
    for child in (*busy, *children):
        assert child.hear() == "ready"
    for child in children:
        child.say("go")
    admitted: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for child in children:
        tally = child.finish()
        admitted.update(tally["admitted"])
        failures.update(tally["others"])
    report(
        f"{threads} threads x {processes} processes beside {len(busy)} busy ones: "
        f"{admitted['key:0']} admitted of {rounds * threads * processes:,}, limit 10, store failures {failures.total()}"
    )
    assert failures == {}
    assert admitted == {"key:0": 10}
