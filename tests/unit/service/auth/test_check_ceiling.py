"""How many checks the workers of a node answer together: by leases, and on virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flaky_store import Flaky
from headgate import Limit, Limiter
from headgate.core.decision import Decision
from headgate.service.auth.guard import CheckCeiling
from headgate.testing import FakeClock


class Node:
    """A machine with some workers."""

    def __init__(self, limit: Limit, workers: int = 1) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.limiter = Limiter("memory://", clock=self.clock)
        self.workers = [CheckCeiling(limit, self.limiter) for _ in range(workers)]

    def admitted(self, wanted: int, worker: int = 0) -> int:
        """How many of so many single checks pass."""
        return sum(self.workers[worker].admit(1) is None for _ in range(wanted))


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 250, 12_345])
def test_one_worker_admits_the_limit(count: int) -> None:
    limit = Limit(count, 1, algorithm="fixed_window")
    node = Node(limit)
    lease = max(1, count // 100)
    for _ in range(3):
        admitted = node.admitted(count + 50)
        assert count - lease < admitted <= count
        node.clock.advance(1)


def test_the_store_is_asked_once_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(Limit(100_000, 1))
    asked: list[int] = []
    bound = node.workers[0]._node
    check = bound.check

    class Counting:
        def check(self, key: str, cost: int) -> Decision:
            asked.append(cost)
            return check(key, cost)

    monkeypatch.setattr(node.workers[0], "_node", Counting())
    assert node.admitted(10_000) == 10_000
    assert asked == [1000] * 10
    assert node.workers[0].admit(1500) is None
    assert asked[10:] == [1500], "a batch takes what it needs"


def test_batches_are_counted_by_their_items_all_or_none() -> None:
    node = Node(Limit(1000, 1, algorithm="fixed_window"))
    (worker,) = node.workers
    assert worker.admit(600) is None
    refusal = worker.admit(600)
    assert refusal is not None
    assert (refusal.status, refusal.headers) == (429, ((b"retry-after", b"1"),))
    assert refusal.detail == (
        "this node is asked for too many checks: the limit is 1000/second using fixed_window, so try again in 1 s"
    )
    assert worker.admit(400) is None, "the refused batch took nothing"
    assert worker.admit(0) is None


def test_a_batch_beyond_the_limit_can_never_pass() -> None:
    (worker,) = Node(Limit(500, 1)).workers
    refusal = worker.admit(1000)
    assert refusal is not None
    assert (refusal.status, refusal.headers) == (429, ())
    assert refusal.detail == "1000 checks at once are more than this node ever takes (500/second): send smaller batches"


def test_no_checks_at_all() -> None:
    (worker,) = Node(Limit(0, 1)).workers
    refusal = worker.admit(1)
    assert refusal is not None
    assert (refusal.status, refusal.headers, refusal.detail) == (
        429,
        (),
        "this node is asked for too many checks: the limit is 0/second",
    )


def test_workers_share_the_limit() -> None:
    node = Node(Limit(100_000, 1, algorithm="fixed_window"), workers=4)
    admitted = sum(node.admitted(1, turn % 4) for turn in range(120_000))
    assert admitted == 100_000
    node.clock.advance(1)
    assert node.admitted(120_000, 2) == 100_000, "one that is asked alone has all of it"


def test_what_was_leased_and_not_used_is_at_most_one_lease_per_worker() -> None:
    node = Node(Limit(10_000, 1, algorithm="fixed_window"), workers=3)
    for worker in range(3):
        assert node.admitted(1, worker) == 1
    node.clock.advance(1)
    admitted = sum(node.admitted(20_000, worker) for worker in range(3))
    assert admitted == 10_000 + 3 * 99


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_never_more_than_the_limit_and_a_lease_each_nor_less_than_the_leases_hold_back(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3000), "count")
    workers = data.draw(st.integers(1, 4), "workers")
    node = Node(Limit(count, 1, algorithm="fixed_window"), workers)
    lease = max(1, count // 100)
    for _ in range(data.draw(st.integers(1, 5), "seconds")):
        admitted = refused = 0
        for _ in range(data.draw(st.integers(1, 30), "calls")):
            size = data.draw(st.integers(1, max(1, count // 3)), "size")
            if node.workers[data.draw(st.integers(0, workers - 1), "worker")].admit(size) is None:
                admitted += size
            else:
                refused += 1
                # What it asked for did not fit, beside what others hold.
                assert admitted + max(size, lease) > count - workers * lease
        assert admitted <= count + workers * lease
        node.clock.advance(1)


def test_a_store_that_fails_lets_checks_pass() -> None:
    store = Flaky()
    store.broken = True
    worker = CheckCeiling(Limit(10, 1), Limiter(store))
    assert [worker.admit(1) for _ in range(100)] == [None] * 100
