"""Whose reservations they are: a key's, or those of all callers without one; never the library's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from crestgate.limiter import stored_reservations
from crestgate.service.context import CallContext
from crestgate.service.errors import ApiError
from unit.service.worker import Worker

ROOT = "/api/v1/reservations"
PLAN = {("plan", "tokens"): {"name": "tokens", "limits": "1000/hour using fixed_window"}}


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(PLAN)
    yield worker
    worker.close()


def call(path: str) -> CallContext:
    """One without a key."""
    return CallContext({"method": "POST", "path": path, "headers": []}, {}, "id")


def reserve(worker: Worker, key: str) -> str:
    body = json.dumps({"key": key, "plans": ["tokens"]}).encode()
    reservation_id: str = json.loads(worker.respond(ROOT, call(ROOT), body).body)["id"]
    return reservation_id


def settle(worker: Worker, reservation_id: str) -> Any:
    path = f"{ROOT}/{reservation_id}/settle"
    settling: Any = worker.http.reservation_routes["settle"].handler(call(path), b'{"actual": 1}')
    return json.loads(worker.runner.run(settling).body)


def test_callers_without_a_key_are_bounded_as_a_key_is(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_reservations, "MAX_OPEN", 2)
    first = reserve(worker, "first")
    reserve(worker, "second")
    with pytest.raises(ApiError, match="2 reservations that are not settled") as refused:
        reserve(worker, "third")
    assert refused.value.status == 429
    assert settle(worker, first) == {"settled": True, "late": False}
    assert reserve(worker, "third")


def test_reservations_of_the_library_are_no_strangers(worker: Worker) -> None:
    async def by_the_library() -> str | None:
        return (await worker.parts.limiter.reserve("acme", "tokens", 800, ttl=60)).id

    reservation_id = worker.runner.run(by_the_library())
    assert reservation_id is not None
    with pytest.raises(ApiError) as unknown:
        settle(worker, reservation_id)
    assert unknown.value.status == 404
