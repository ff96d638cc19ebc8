"""A process that has used a store forks: parent and child both continue, as two users of the store."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from crestgate import Limiter
from crestgate.runtime.fork_safety import MAX_WAIT
from crestgate.stores.shared import SharedStore
from crestgate.stores.shared.locks import FIRST_STRIPE
from integration.child_process import ChildProcess, is_stopped, wait_until
from integration.fork_programs import CHAIN

Start = Callable[..., ChildProcess]


def at(path: Path, timeout_ms: int = 10_000) -> str:
    return f"shared://{path}?max_keys=10000&timeout_ms={timeout_ms}"


@pytest.mark.parametrize("limits", [CHAIN[:1], CHAIN], ids=["one limit", "a chain"])
def test_fork_while_a_thread_checks(limits: list[str], counters: Path, start: Start) -> None:
    """A fork takes all locks before, in the global lock order."""
    result = start("fork_programs.fork_and_hammer", url=at(counters, 3000), limits=limits, forks=30, checks=50).finish()
    assert result["children"] == [50] * 30
    assert result["parent"] > 0
    assert result["used"] == result["parent"] + 30 * 50
    assert result["fork"] < MAX_WAIT, "forks do not give up on a lock"


def test_limit_holds_across_forks(counters: Path, start: Start) -> None:
    result = start(
        "fork_programs.fork_and_hammer", url=at(counters), limits=["2000/year"], forks=20, checks=150
    ).finish()
    assert result["used"] == 2000
    assert result["parent"] + sum(result["children"]) == 2000


def test_forked_child_has_its_own_locks(counters: Path, start: Start) -> None:
    result = start("fork_programs.lock_in_child", url=at(counters)).finish()
    assert result == {"while child holds": False, "when free": True, "while parent holds": False}


def test_parent_is_killed_with_all_locks(counters: Path, start: Start) -> None:
    with Limiter(at(counters, 50), on_store_error="closed") as limiter:
        parent = start("fork_programs.parent_dies", url=at(counters, 1000))
        assert parent.receive() == "held"
        assert limiter.check("key", CHAIN[0]).reason == "fail_closed", "the parent holds the lock"
        parent.kill()
        assert limiter.check("key", CHAIN[0]).reason == "ok"
    parent.send("go")  # read by the child, which has the same pipes
    assert parent.receive() == 5
    with Limiter(at(counters)) as limiter:
        assert limiter.peek("key", CHAIN[0]).remaining == 1_000_000 - 11


@pytest.mark.parametrize("after", [0.2, 1.5], ids=["briefly", "long"])
@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_fork_while_a_thread_is_inside_a_check(kind: str, after: float, counters: Path, start: Start) -> None:
    url = "memory://" if kind == "memory" else at(counters)
    assert start("fork_programs.fork_inside_check", url=url, after=after).finish() == {"child": 3, "parent": 3}


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_fork_while_a_thread_records_pressure(kind: str, counters: Path, start: Start) -> None:
    url = "memory://" if kind == "memory" else at(counters)
    result = start("fork_programs.fork_inside_pressure", url=url).finish()
    assert result == {"child": ["throttled", "limited"], "parent": "throttled"}


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_fork_while_a_thread_waits_its_turn(kind: str, counters: Path, start: Start) -> None:
    url = "memory://" if kind == "memory" else at(counters)
    assert start("fork_programs.fork_while_others_wait", url=url).finish() == {"child": "ok"}


def test_fork_while_a_thread_waits_for_a_stopped_process(counters: Path, start: Start) -> None:
    with Limiter(at(counters)) as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        stripe = store.digests.locate(CHAIN[0], "key").stripe
    holder = start("load_programs.hold", url=at(counters), locks=[FIRST_STRIPE + stripe])
    assert holder.receive() == "held"
    wait_until("the holder is stopped", lambda: is_stopped(holder.pid))
    forking = start("fork_programs.fork_behind_a_stopped_process", url=at(counters), key="key")
    assert forking.receive() < 5.0, "a fork does not wait forever"
    holder.signal(signal.SIGCONT)
    assert holder.receive() == "released"
    forking.send("go")
    assert forking.finish() == {"child": "ok", "parent": "ok"}


def test_fork_while_a_thread_holds_some_of_its_locks(counters: Path, start: Start) -> None:
    """A chain holds its first lock and waits for the others; the fork needs all. Both must use one lock order."""
    chain = [f"{count}/year" for count in range(1000, 1012)]
    with Limiter(at(counters)) as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        first = min(store.digests.locate(name, "key").stripe for name in limiter.bind(chain).names)
    holder = start("load_programs.hold", url=at(counters), locks=[FIRST_STRIPE + first])
    assert holder.receive() == "held"
    wait_until("the holder is stopped", lambda: is_stopped(holder.pid))
    forking = start("fork_programs.fork_between_locks", url=at(counters), limits=chain)
    assert forking.receive() == "waiting"
    assert forking.is_silent(0.2), "the fork waits for the thread, which waits for the holder"
    holder.signal(signal.SIGCONT)
    assert forking.finish() == {"child": "ok", "thread": ["ok"], "slow": False}


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_threads_fork_concurrently(kind: str, counters: Path, start: Start) -> None:
    url = "memory://" if kind == "memory" else at(counters)
    result = start("fork_programs.fork_concurrently", url=url, threads=4, forks=250).finish()
    assert result == {"child": 2, "stuck": False, "parent": 2}
