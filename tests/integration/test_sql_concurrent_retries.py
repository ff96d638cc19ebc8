"""Processes and threads that ask for the same at the same time, on one database: one of them is decided, all get its
answer, and nobody dead-locks for good."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crestgate.stores.port import Member, Op, Request
from databases import KINDS, open_at, url_of
from integration.child_process import Child
from integration.sql_idempotency_programs import KEYS, MANY

NAMES = 40


@pytest.mark.parametrize("kind", KINDS)
def test_concurrent_retries_are_decided_once(
    kind: str, request: pytest.FixtureRequest, start: Callable[..., Child]
) -> None:
    url = url_of(kind, request)
    children = [
        start("sql_idempotency_programs.ask_once", url=url, prefix="race", names=NAMES, threads=3, seed=seed)
        for seed in range(3)
    ]
    for child in children:
        assert child.hear() == "ready"
    for child in children:
        child.say("go")
    results = [child.finish() for child in children]
    answers = [answer for one in results for answer in one["answers"]]
    assert len(answers) == 9
    assert all(answer == answers[0] for answer in answers), "all get the same answer"
    assert len(answers[0]) == NAMES
    assert sum(one["decided"] for one in results) == NAMES
    store = open_at(url, prefix="race")
    looks = [Request(Op.PEEK, [Member(f"key {number}", MANY, 0)]) for number in range(KEYS)]
    left = sum(reply[0].decision.remaining for reply in store.apply(looks))
    store.close()
    assert KEYS * 1_000_000 - left == 4 * NAMES + sum(one["besides"] for one in results), "and each is charged once"
