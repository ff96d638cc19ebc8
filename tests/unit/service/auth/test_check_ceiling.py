"""The check ceiling that the workers of a node share through leases, on virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate import Limit, Limiter
from crestgate.core.decision import Decision
from crestgate.service.auth.guard import CheckCeiling
from crestgate.testing import FakeClock
from flaky_store import Flaky


class Node:
    """A machine with some workers."""

    def __init__(self, limit: Limit, workers: int = 1) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.limiter = Limiter("memory://", clock=self.clock)
        self.workers = [CheckCeiling(limit, self.limiter) for _ in range(workers)]

    def admitted(self, count: int, worker: int = 0) -> int:
        """The number of single checks that pass, of `count`."""
        return sum(self.workers[worker].admit(1) is None for _ in range(count))


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 250, 12_345])
def test_one_worker_admits_the_limit(count: int) -> None:
    limit = Limit(count, 1, algorithm="fixed_window")
    node = Node(limit)
    lease = max(1, count // 100)
    for _ in range(3):
        admitted = node.admitted(count + 50)
        assert count - lease < admitted <= count
        node.clock.advance(1)


def test_store_is_used_once_per_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(Limit(100_000, 1))
    costs: list[int] = []
    bound = node.workers[0]._node
    check = bound.check

    class Counting:
        def check(self, key: str, cost: int) -> Decision:
            costs.append(cost)
            return check(key, cost)

    monkeypatch.setattr(node.workers[0], "_node", Counting())
    assert node.admitted(10_000) == 10_000
    assert costs == [1000] * 10
    assert node.workers[0].admit(1500) is None
    assert costs[10:] == [1500], "a batch takes what it needs"


def test_batches_count_their_items_atomically() -> None:
    node = Node(Limit(1000, 1, algorithm="fixed_window"))
    (worker,) = node.workers
    assert worker.admit(600) is None
    refusal = worker.admit(600)
    assert refusal is not None
    assert (refusal.status, refusal.headers) == (429, ((b"retry-after", b"1"),))
    assert refusal.detail == ("too many checks on this node: the limit is 1000/second using fixed_window, retry in 1 s")
    assert worker.admit(400) is None, "the refused batch took nothing"
    assert worker.admit(0) is None


def test_batch_above_the_limit_is_refused_for_good() -> None:
    (worker,) = Node(Limit(500, 1)).workers
    refusal = worker.admit(1000)
    assert refusal is not None
    assert (refusal.status, refusal.headers) == (429, ())
    assert (
        refusal.detail == "1000 checks at once are more than the limit of this node (500/second): send smaller batches"
    )


def test_limit_of_zero_checks() -> None:
    (worker,) = Node(Limit(0, 1)).workers
    refusal = worker.admit(1)
    assert refusal is not None
    assert (refusal.status, refusal.headers, refusal.detail) == (
        429,
        (),
        "too many checks on this node: the limit is 0/second",
    )


def test_workers_share_the_limit() -> None:
    node = Node(Limit(100_000, 1, algorithm="fixed_window"), workers=4)
    admitted = sum(node.admitted(1, turn % 4) for turn in range(120_000))
    assert admitted == 100_000
    node.clock.advance(1)
    assert node.admitted(120_000, 2) == 100_000, "a single busy worker gets the whole limit"


def test_unused_leases_are_bounded_per_worker() -> None:
    node = Node(Limit(10_000, 1, algorithm="fixed_window"), workers=3)
    for worker in range(3):
        assert node.admitted(1, worker) == 1
    node.clock.advance(1)
    admitted = sum(node.admitted(20_000, worker) for worker in range(3))
    assert admitted == 10_000 + 3 * 99


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_leases_bound_over_and_under_admission(data: st.DataObject) -> None:
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
                # Its lease did not fit beside those of the others.
                assert admitted + max(size, lease) > count - workers * lease
        assert admitted <= count + workers * lease
        node.clock.advance(1)


def test_failing_store_with_fail_open_allows_checks() -> None:
    store = Flaky()
    store.broken = True
    worker = CheckCeiling(Limit(10, 1), Limiter(store))
    assert [worker.admit(1) for _ in range(100)] == [None] * 100
