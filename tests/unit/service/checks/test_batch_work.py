"""Bounds on the work of one store call and of one turn of the worker for a batch: work is counted, not time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from crestgate.core.limit import Limit
from crestgate.errors import InvalidRequestError
from crestgate.service.checks.forms import read_batch
from crestgate.service.checks.operations import Operation
from crestgate.service.checks.slices import MEMBER_SLICE, PREPARE_SLICE, REMOTE_SLICE, work_of
from crestgate.service.context import CallContext
from crestgate.service.errors import ApiError
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Outcome, Request
from crestgate.testing import FakeClock
from unit.service.worker import Worker

LOG = "10000/day using sliding_window_log"
LOGS = [{"key": f"log{n}", "limit": LOG, "cost": 10_000} for n in range(3)]
RECORDS = {
    ("plan", "log"): {"limits": [LOG]},
    ("plan", "one"): {"limits": ["1000000/day using fixed_window"]},
}


class RecordingStore:
    """A store that the service treats as remote; records the requests of each call."""

    def __init__(self) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.memory = MemoryStore(clock=self.clock)
        self.calls: list[Sequence[Request]] = []

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        self.calls.append(batch)
        return self.memory.apply(batch)

    def close(self) -> None:
        self.memory.close()

    @property
    def work(self) -> list[int]:
        return [sum(work_of(request) for request in call) for call in self.calls]


@pytest.fixture
def store() -> RecordingStore:
    return RecordingStore()


@pytest.fixture
def worker(store: RecordingStore) -> Iterator[Worker]:
    found = Worker(RECORDS, store, limits={"checks": Limit(1_000_000, 1)})
    yield found
    found.close()


def batch(worker: Worker, body: Mapping[str, Any], headers: Mapping[bytes, bytes] | None = None) -> list[Any]:
    call = CallContext({"headers": []}, headers or {}, "id")
    reply = worker.respond("/api/v1/check/batch", call, json.dumps(body).encode())
    assert reply.status == 200
    decisions: list[Any] = json.loads(reply.body)["decisions"]
    return decisions


@pytest.mark.parametrize("slice_size", [MEMBER_SLICE, REMOTE_SLICE])
@pytest.mark.parametrize("exact", [True, False])
def test_inline_logs_are_weighed_by_their_entries(
    worker: Worker, store: RecordingStore, slice_size: int, exact: bool
) -> None:
    worker.http.operations.slice = slice_size
    decisions = batch(worker, {"exact": exact, "checks": [{"counters": LOGS}] * 10})
    assert len(decisions) == 10
    assert [len(call) for call in store.calls] == [1] * 10, "each check exceeds a slice, so it has its own call"
    store.calls.clear()
    small = [{"counters": [{"key": f"k{n}", "limit": "320/day using sliding_window_log"}]} for n in range(100)]
    batch(worker, {"exact": exact, "checks": small})
    assert max(store.work) <= slice_size
    assert sum(store.work) == 100 * 11


def test_batch_of_little_work_is_one_call(worker: Worker, store: RecordingStore) -> None:
    batch(worker, {"exact": True, "checks": [{"counters": [{"key": "a", "limit": "9/s"}]}] * 100})
    assert len(store.calls) == 1


def test_logs_of_one_check_are_bounded_together(worker: Worker, store: RecordingStore) -> None:
    many = [{"key": f"log{n}", "limit": LOG} for n in range(4)]
    problem = "4 sliding window logs of 40,000 entries together; the maximum is 32,768"
    with pytest.raises(InvalidRequestError, match=problem):
        batch(worker, {"checks": [{"counters": many}]})
    huge = {"key": "huge", "limit": "2147483647/day using sliding_window_log"}
    with pytest.raises(InvalidRequestError, match="2 sliding window logs"):
        batch(worker, {"checks": [{"counters": [huge, LOGS[0]]}]})
    assert store.calls == []
    batch(worker, {"checks": [{"counters": many[:3]}, {"counters": [huge, {"key": "a", "limit": "9/s"}]}]})


@pytest.mark.parametrize(("plan", "most"), [("one", 256), ("log", 1)])
def test_batch_with_idempotency_key_is_bounded_by_work(
    worker: Worker, store: RecordingStore, plan: str, most: int
) -> None:
    """It is decided in one step with its record. One check alone is one step in any case."""
    check = {"key": "me", "plans": [plan], "cost": 1}
    with pytest.raises(ApiError, match="256 is the most that is decided in one step") as refused:
        batch(worker, {"checks": [check] * (most + 1)}, {b"idempotency-key": b"large"})
    assert refused.value.status == 413
    assert store.calls == []
    decisions = batch(worker, {"checks": [check] * most}, {b"idempotency-key": b"small"})
    assert len(decisions) == most
    assert [len(call) for call in store.calls] == [most]


@pytest.mark.parametrize("bad", [{"key": "k"}, {"key": "k", "limit": "lots"}, {"key": ""}])
def test_invalid_checks_count_as_work_of_a_turn(worker: Worker, bad: Mapping[str, Any]) -> None:
    fine = [{"key": "k", "name": f"{n}", "limit": f"{n + 1}/s"} for n in range(9)]
    body = read_batch(json.dumps({"exact": True, "checks": [{"counters": [*fine, bad]}] * 100}).encode())
    operations: list[Operation] = []
    worker.http.operations.prepare(CallContext({"headers": []}, {}, "id"), body, operations, PREPARE_SLICE)
    assert 1 <= len(operations) <= PREPARE_SLICE // 10
    assert all(one.error is not None for one in operations)
    decisions = batch(worker, {"exact": True, "checks": [{"counters": [*fine, bad]}] * 100})
    assert [decision["error"]["status"] for decision in decisions] == [400] * 100
