"""Many processes, threads and tasks on one database together admit exactly the limit.

The periods are so long that nothing refills while a test runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from crestgate import Limiter
from databases import KINDS, url_of
from integration.child_process import ChildProcess
from integration.test_shared_processes import admitted_by

Start = Callable[..., ChildProcess]
_numbers = itertools.count()


@pytest.fixture(scope="module", params=KINDS)
def database(request: pytest.FixtureRequest) -> str:
    return url_of(request.param, request)


@pytest.fixture
def url(database: str) -> str:
    return f"{database}?prefix=processes-{next(_numbers)}&timeout_ms=30000"


@pytest.mark.parametrize("algorithm", ["gcra", "sliding_window_log"])
def test_processes_and_threads_on_one_key(algorithm: str, url: str, start: Start) -> None:
    limit = f"500/year using {algorithm}"
    children = [
        start("load_programs.hammer", url=url, limits=[limit], keys=1, rounds=50, threads=4, seed=seed)
        for seed in range(4)
    ]
    assert admitted_by(children) == {"key:0": 500}
    with Limiter(url) as limiter:
        assert limiter.peek("key:0", limit).remaining == 0


def test_processes_and_threads_on_a_thousand_keys(url: str, start: Start) -> None:
    limit = "3/year using sliding_window_log"
    children = [
        start("load_programs.hammer", url=url, limits=[limit], keys=1000, rounds=1, threads=2, seed=seed)
        for seed in range(2)
    ]
    assert admitted_by(children) == {f"key:{i}": 3 for i in range(1000)}


def test_processes_and_tasks_with_chains_in_both_orders(url: str, start: Start) -> None:
    chain = ["700/year", "600/year using sliding_window_log", "500/year using fixed_window"]
    children = [
        start("load_programs.hammer_async", url=url, limits=order, tasks=50, rounds=10)
        for order in (chain, chain[::-1])
    ]
    assert admitted_by(children) == {"key:0": 500}
    with Limiter(url) as limiter:
        assert [limiter.peek("key:0", limit).remaining for limit in chain] == [200, 100, 0]
