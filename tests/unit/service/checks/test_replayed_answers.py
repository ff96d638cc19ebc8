"""A repeat with the same idempotency key gets the first answer, to the second."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from crestgate.service.context import CallContext
from crestgate.stores.memory import MemoryStore
from crestgate.testing import FakeClock
from unit.service.worker import Worker


class RunningClock(FakeClock):
    """A third of a second passes between two readings: a store decides later than the service begins."""

    def ticks(self) -> int:
        self.advance(0.3)
        return super().ticks()


@pytest.fixture
def worker() -> Iterator[Worker]:
    found = Worker({("plan", "gold"): {"limits": ["9/hour"]}}, store=MemoryStore(clock=RunningClock(1_700_000_000)))
    yield found
    found.close()


def check(worker: Worker, key: int) -> dict[str, Any]:
    call = CallContext({"headers": []}, {b"idempotency-key": b"%d" % key}, "id")
    response = worker.respond("/api/v1/check", call, json.dumps({"key": f"user:{key}", "plans": ["gold"]}).encode())
    answer: dict[str, Any] = json.loads(response.body)
    return answer


def test_repeat_has_the_reset_time_of_the_first_answer(worker: Worker) -> None:
    for key in range(10):
        first, repeat = check(worker, key), check(worker, key)
        assert (first.pop("reason"), repeat.pop("reason")) == ("ok", "replayed")
        assert repeat == first


def test_repeat_under_a_calendar_limit_has_the_first_answer() -> None:
    plans = {("plan", "gold"): {"limits": ["9/calendar month in Asia/Tokyo"]}}
    worker = Worker(plans, store=MemoryStore(clock=RunningClock(1_700_000_000)))
    first, repeat = check(worker, 1), check(worker, 1)
    worker.close()
    assert (first.pop("reason"), repeat.pop("reason")) == ("ok", "replayed")
    assert (first["limit"], first["remaining"]) == (9, 8)
    assert repeat == first
