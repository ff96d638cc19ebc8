"""Invalid requests count as one check against the ceiling of the node, whatever their size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from crestgate.core.limit import Limit
from crestgate.errors import InvalidRequestError
from crestgate.service.checks.deferred import Deferred
from crestgate.service.checks.schemas import CheckBody, CounterBody
from crestgate.service.checks.slices import weigh
from crestgate.service.context import CallContext
from unit.service.worker import Worker

CEILING = 1000
GOOD: Mapping[str, Any] = {"key": "a", "plans": ["gold"]}
NAMED: Mapping[str, Any] = {"counters": [{"key": f"k{n}", "limit": "9/s"} for n in range(10)]}
KEYED = {b"idempotency-key": b"k" * 256}


@pytest.fixture
def worker() -> Iterator[Worker]:
    limits = {"checks": Limit(CEILING, 86_400, algorithm="fixed_window")}
    found = Worker({("plan", "gold"): {"limits": ["9/s"]}}, limits=limits)
    yield found
    found.close()


def status_of(worker: Worker, body: bytes, fields: Mapping[bytes, bytes]) -> int:
    """Send a batch as the service does; its status."""
    call = CallContext({"headers": []}, fields, "id")
    try:
        response = worker.respond("/api/v1/check/batch", call, body)
    except InvalidRequestError:
        return 400
    return response.status


@pytest.mark.parametrize(
    ("checks", "fields"),
    [
        ([GOOD] * 99 + [{"key": "a", "plans": ["none"]}], {}),
        ([GOOD] * 500 + [{"key": ""}], {}),
        ([NAMED] * 50 + [{"counters": [{"key": "a"}]}], {}),
        ([{"key": "a", "plans": [""] * 5000}], {}),
        ([GOOD] * 100, KEYED),
    ],
    ids=["at once", "in slices", "counters", "empty plans", "idempotency key"],
)
def test_refused_batch_counts_as_one_check(worker: Worker, checks: list[Any], fields: Mapping[bytes, bytes]) -> None:
    body = json.dumps({"checks": checks}).encode()
    assert [status_of(worker, body, fields) for _ in range(20)] == [400] * 20
    worker.checks.admit(CEILING - 20)  # ApiError if more was used up


@pytest.mark.parametrize(
    ("checks", "fields"),
    [([GOOD] * 500, {}), ([GOOD] * 10, KEYED), ([NAMED] * 50, {}), ([{**GOOD, "op": "peek"}] * 500, {})],
    ids=["in slices", "idempotency key", "counters", "operations"],
)
def test_batch_that_is_never_awaited_counts_as_one_check(
    worker: Worker, checks: list[Any], fields: Mapping[bytes, bytes]
) -> None:
    """The client may reset the call before its task has started."""

    async def drop() -> None:
        call = CallContext({"headers": []}, fields, "id")
        deferred = worker.http.routes["/api/v1/check/batch"].handler(call, json.dumps({"checks": checks}).encode())
        assert isinstance(deferred, Deferred)
        deferred.close()
        deferred.close()

    for _ in range(20):
        worker.runner.run(drop())
    worker.checks.admit(CEILING - 20)  # ApiError if more was used up


def test_check_with_too_many_counters_weighs_one() -> None:
    counter = CounterBody(key="a", limit="1/s")
    assert weigh([CheckBody(counters=[counter] * 101), CheckBody(key="a", plans=["x"] * 21)]) == 2
    assert weigh([CheckBody(counters=[counter] * 100), CheckBody(key="a", plans=["x"] * 20)]) == 120
