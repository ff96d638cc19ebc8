"""Many processes on one counter file together admit exactly the limit.

The periods are so long that nothing refills while a test runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from crestgate import Limiter
from integration.child_process import ChildProcess

Start = Callable[..., ChildProcess]

ALGORITHMS = [
    "token_bucket",
    "leaky_bucket",
    "gcra",
    "fixed_window",
    "sliding_window_counter",
    "sliding_window_log",
]


def at(path: Path) -> str:
    return f"shared://{path}?timeout_ms=10000"


def admitted_by(children: list[ChildProcess]) -> Counter[str]:
    """Start all children together; return what they were granted in total. Asserts that no store error occurred."""
    for child in children:
        assert child.receive() == "ready"
    for child in children:
        child.send("go")
    total: Counter[str] = Counter()
    for child in children:
        tally = child.finish()
        assert tally["others"] == {}
        total.update(tally["admitted"])
    return total


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_four_processes_on_one_key(algorithm: str, counters: Path, start: Start) -> None:
    count = 5_000 if algorithm == "sliding_window_log" else 20_000
    limit = f"{count}/year using {algorithm}"
    children = [
        start("load_programs.hammer", url=at(counters), limits=[limit], keys=1, rounds=count // 2, threads=1, seed=seed)
        for seed in range(4)
    ]
    assert admitted_by(children) == {"key:0": count}
    with Limiter(at(counters)) as limiter:
        assert limiter.peek("key:0", limit).remaining == 0


@pytest.mark.parametrize("algorithm", ["token_bucket", "sliding_window_log"])
def test_four_processes_on_a_thousand_keys(algorithm: str, counters: Path, start: Start) -> None:
    limit = f"5/year using {algorithm}"
    url = f"{at(counters)}&max_keys=5000"
    children = [
        start("load_programs.hammer", url=url, limits=[limit], keys=1000, rounds=3, threads=1, seed=seed)
        for seed in range(4)
    ]
    assert admitted_by(children) == {f"key:{i}": 5 for i in range(1000)}


def test_chain_is_all_or_nothing(counters: Path, start: Start) -> None:
    larger, smaller = "3000/year", "2000/year using fixed_window"
    children = [
        start(
            "load_programs.hammer",
            url=at(counters),
            limits=[larger, smaller],
            keys=1,
            rounds=1000,
            threads=1,
            seed=seed,
        )
        for seed in range(4)
    ]
    assert admitted_by(children) == {"key:0": 2000}
    with Limiter(at(counters)) as limiter:
        assert limiter.peek("key:0", larger).remaining == 1000, "the requests that the smaller denied cost nothing"
        assert limiter.peek("key:0", smaller).remaining == 0


def test_chains_in_both_orders_do_not_deadlock(counters: Path, start: Start) -> None:
    """Counters of one request are in different stripes, which are always locked in one order."""
    chain = ["3000/year", "2500/year using gcra", "2000/year using fixed_window", "2200/year using leaky_bucket"]
    orders = [chain, chain[::-1], chain[2:] + chain[:2], chain[1:] + chain[:1]]
    children = [
        start("load_programs.hammer", url=at(counters), limits=order, keys=1, rounds=800, threads=1, seed=seed)
        for seed, order in enumerate(orders)
    ]
    assert admitted_by(children) == {"key:0": 2000}
    with Limiter(at(counters)) as limiter:
        assert [limiter.peek("key:0", limit).remaining for limit in chain] == [1000, 500, 0, 200]


@pytest.mark.parametrize("keys", [1, 100])
def test_threads_and_processes_together(keys: int, counters: Path, start: Start) -> None:
    rounds = 800 // keys
    limit = f"{rounds * 5}/year"
    children = [
        start("load_programs.hammer", url=at(counters), limits=[limit], keys=keys, rounds=rounds, threads=4, seed=seed)
        for seed in range(2)
    ]
    assert admitted_by(children) == {f"key:{i}": rounds * 5 for i in range(keys)}


@pytest.mark.parametrize("limits", [["3000/year"], ["3000/year", "4000/year using sliding_window_counter"]])
def test_tasks_and_processes_together(limits: list[str], counters: Path, start: Start) -> None:
    children = [
        start("load_programs.hammer_async", url=at(counters), limits=limits, tasks=50, rounds=40) for _ in range(2)
    ]
    assert admitted_by(children) == {"key:0": 3000}


def test_tasks_and_threads_of_other_processes_together(counters: Path, start: Start) -> None:
    children = [
        start("load_programs.hammer_async", url=at(counters), limits=["3000/year"], tasks=50, rounds=40),
        start("load_programs.hammer", url=at(counters), limits=["3000/year"], keys=1, rounds=1000, threads=2, seed=1),
    ]
    assert admitted_by(children) == {"key:0": 3000}
