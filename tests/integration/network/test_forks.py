"""A process that uses a remote store forks: parent and child continue, each with its own connections."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

from crestgate import Limiter
from integration.child_process import ChildProcess
from integration.network.load_processes import with_options

STORES = ["redis_server", "redis_cluster", "mariadb", "postgres"]
LIMIT = "1000000/year using fixed_window"

Start = Callable[..., ChildProcess]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest) -> str:
    return with_options(request.getfixturevalue(request.param).url, prefix=uuid4().hex, timeout_ms=10_000)


def used(url: str) -> int:
    with Limiter(url) as limiter:
        return 1_000_000 - limiter.peek("key", LIMIT, 0).remaining


def test_fork_while_a_thread_checks(url: str, start: Start) -> None:
    result = start("fork_programs.fork_and_hammer", url=url, limits=[LIMIT], forks=8, checks=20).finish()
    assert result["children"] == [20] * 8
    assert result["parent"] > 0
    assert result["used"] == result["parent"] + 8 * 20 == used(url)


@pytest.mark.parametrize("program", ["fork_between_loops", "fork_in_a_loop"])
def test_fork_with_event_loops(url: str, program: str, start: Start) -> None:
    counts = start(f"network.async_fork_programs.{program}", url=url, limit=LIMIT, checks=20).finish()
    assert set(counts) == {20}
    assert used(url) == sum(counts)
