"""Threads that share a hot key admit exactly the limit, with default settings and on a busy machine.

No check may miss its deadline behind a lock held for microseconds: the failure policy would then let it pass.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from crestgate import AsyncLimiter, Limiter
from integration.child_process import TIMEOUT, ChildProcess

Start = Callable[..., ChildProcess]
Report = Callable[[str], None]

CHECKS = 20_000
"""The total of all threads of all processes."""


@pytest.mark.parametrize(("threads", "processes"), [(1, 8), (8, 1), (32, 1), (64, 1), (8, 4), (64, 8)])
def test_threads_on_a_hot_key(threads: int, processes: int, counters: Path, start: Start, report: Report) -> None:
    busy = [start("load_programs.keep_busy", seconds=2 * TIMEOUT) for _ in range(os.cpu_count() or 1)]
    rounds = max(CHECKS // (threads * processes), 20)
    children = [
        start(
            "load_programs.hammer",
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
        assert child.receive() == "ready"
    for child in children:
        child.send("go")
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


CHAIN = ["100000000/day", "200000000/day", "300000000/day"]


@pytest.mark.parametrize("mode", ["threads", "batch", "loop"])
def test_chain_is_not_starved_by_threads_that_use_its_members(mode: str, counters: Path) -> None:
    """The threads take one lock each repeatedly; the chain needs all locks at the same time."""
    with Limiter(f"shared://{counters}", on_store_error="closed") as limiter:
        stop_event = threading.Event()

        def use(limit: str) -> None:
            bound = limiter.bind(limit)
            while not stop_event.is_set():
                bound.check("key")

        async def check_chain() -> list[str]:
            async with AsyncLimiter(f"shared://{counters}", on_store_error="closed") as other:
                return [(await other.check("key", CHAIN)).reason for _ in range(20)]

        threads = [threading.Thread(target=use, args=(limit,), daemon=True) for limit in CHAIN]
        for thread in threads:
            thread.start()
        try:
            if mode == "threads":
                reasons = [limiter.check("key", CHAIN).reason for _ in range(20)]
            elif mode == "batch":
                items = [("key", limit) for limit in CHAIN]
                reasons = [decision.reason for _ in range(20) for decision in limiter.check_many(items)]
            else:
                reasons = asyncio.run(asyncio.wait_for(check_chain(), TIMEOUT))
        finally:
            stop_event.set()
            for thread in threads:
                thread.join(TIMEOUT)
        assert set(reasons) == {"ok"}
