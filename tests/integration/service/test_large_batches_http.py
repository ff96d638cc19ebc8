"""Too large batches: refused with an error before anything is counted, and never admitted uncounted."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from integration.service.api_helpers import problem

LIMITS = 15


@pytest.fixture(scope="module", autouse=True)
def wide_plan(admin: httpx.Client) -> Iterator[None]:
    """A plan of many limits."""
    limits = [f"{100_000 + number}/day using fixed_window" for number in range(LIMITS)]
    assert admin.post("/api/v1/plans", json={"name": "wide", "limits": limits}).status_code == 201
    yield
    assert admin.delete("/api/v1/plans/wide").status_code == 204


def batch(client: httpx.Client, key: str, size: int, **headers: str) -> httpx.Response:
    body = {"checks": [{"key": key, "plans": ["wide"]}] * size}
    return client.post("/api/v1/check/batch", json=body, headers=headers)


def used(client: httpx.Client, key: str) -> int:
    count: int = client.post("/api/v1/quota", json={"key": key, "plans": ["wide"]}).json()["current_count"]
    return count


def test_batch_too_large_for_an_idempotency_record_is_refused(anyone: httpx.Client) -> None:
    key = uuid4().hex
    response = batch(anyone, key, 500, **{"idempotency-key": key})
    problem(response, 413, "send fewer checks in one batch with an idempotency key")
    assert used(anyone, key) == 0
    first, again = (batch(anyone, key, 17, **{"idempotency-key": key}) for _ in range(2))
    assert {decision["reason"] for decision in first.json()["decisions"]} == {"ok"}
    assert {decision["reason"] for decision in again.json()["decisions"]} == {"replayed"}
    assert used(anyone, key) == 17


@pytest.mark.parametrize("idempotent", [False, True])
def test_counters_of_one_call_are_bounded(anyone: httpx.Client, idempotent: bool) -> None:
    key = uuid4().hex
    headers = {"idempotency-key": key} if idempotent else {}
    response = batch(anyone, key, 1000, **headers)
    problem(response, 413, "the first 667 checks have more than 10,000 limits: send fewer in one batch")
    assert used(anyone, key) == 0


def test_batch_without_idempotency_key_may_be_larger(anyone: httpx.Client) -> None:
    key = uuid4().hex
    assert batch(anyone, key, 500).status_code == 200
    assert used(anyone, key) == 500
