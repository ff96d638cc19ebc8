"""Concurrent idempotent requests of processes and threads on one database: one is decided, the others are replays of
it, and no deadlock lasts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crestgate.stores.port import Member, Op, Request
from databases import KINDS, open_at, url_of
from integration.child_process import ChildProcess
from integration.sql_idempotency_programs import KEYS, LIMIT

NAMES = 40


@pytest.mark.parametrize("kind", KINDS)
def test_concurrent_retries_are_decided_once(
    kind: str, request: pytest.FixtureRequest, start: Callable[..., ChildProcess]
) -> None:
    url = url_of(kind, request)
    children = [
        start("sql_idempotency_programs.take_once", url=url, prefix="race", names=NAMES, threads=3, seed=seed)
        for seed in range(3)
    ]
    for child in children:
        assert child.receive() == "ready"
    for child in children:
        child.send("go")
    results = [child.finish() for child in children]
    remaining = [numbers for result in results for numbers in result["remaining"]]
    assert len(remaining) == 9
    assert all(numbers == remaining[0] for numbers in remaining), "all get the same result"
    assert len(remaining[0]) == NAMES
    assert sum(result["decided"] for result in results) == NAMES
    store = open_at(url, prefix="race")
    peeks = [Request(Op.PEEK, [Member(f"key {number}", LIMIT, 0)]) for number in range(KEYS)]
    left = sum(reply[0].decision.remaining for reply in store.apply(peeks))
    store.close()
    assert KEYS * 1_000_000 - left == 4 * NAMES + sum(result["other_takes"] for result in results), (
        "each is charged once"
    )
