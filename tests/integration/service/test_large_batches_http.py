"""Batches that ask for very much: refused in words before anything is counted, and never let through uncounted."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from integration.service.api_helpers import problem

LIMITS = 15


@pytest.fixture(scope="module", autouse=True)
def wide(admin: httpx.Client) -> Iterator[None]:
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


def test_what_cannot_be_kept_for_a_repeat_is_refused(anyone: httpx.Client) -> None:
    key = uuid4().hex
    told = batch(anyone, key, 500, **{"idempotency-key": key})
    problem(told, 413, "send fewer checks in one batch with an idempotency key")
    assert used(anyone, key) == 0
    first, again = (batch(anyone, key, 17, **{"idempotency-key": key}) for _ in range(2))
    assert {decision["reason"] for decision in first.json()["decisions"]} == {"ok"}
    assert {decision["reason"] for decision in again.json()["decisions"]} == {"replayed"}
    assert used(anyone, key) == 17


@pytest.mark.parametrize("repeats", [False, True])
def test_one_call_asks_about_so_many_counters(anyone: httpx.Client, repeats: bool) -> None:
    key = uuid4().hex
    headers = {"idempotency-key": key} if repeats else {}
    told = batch(anyone, key, 1000, **headers)
    problem(told, 413, "the first 667 checks have more than 10,000 limits: send fewer in one batch")
    assert used(anyone, key) == 0


def test_without_a_key_for_repeats_a_batch_may_be_larger(anyone: httpx.Client) -> None:
    key = uuid4().hex
    assert batch(anyone, key, 500).status_code == 200
    assert used(anyone, key) == 500
