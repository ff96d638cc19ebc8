"""Fifty concurrent replays of one idempotent request, from tasks and threads, are charged once on every topology.

On one server the record is written by the script call that decides. In a cluster it is claimed first; a caller that
finds the claim retries, as the service does.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from uuid import uuid4

import pytest

from crestgate import AsyncLimiter, Limit
from crestgate.core.algorithms import build
from crestgate.stores.factory import open_store
from crestgate.stores.port import IdempotencyRecord, Member, Op, Replay, Request
from crestgate.stores.redis import RedisStore

SERVERS = {"one": "redis_server", "cluster": "redis_cluster", "sentinel": "redis_sentinels"}
REPLAYS = 50
ROUNDS = 5
USERS = [f"user:{number}" for number in range(4)]
"""In a cluster each has its own tag, and the record another."""
PLAN = "1000/year using sliding_window_log"
Numbers = tuple[tuple[bool, int], ...]


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    return f"{request.getfixturevalue(SERVERS[request.param]).url}?prefix={uuid4()}&timeout_ms=10000"


def replayed(replay: Replay) -> Numbers:
    return tuple((allowed, remaining) for allowed, remaining, _, _ in replay.numbers)


def test_concurrent_tasks(url: str) -> None:
    async def race() -> list[list[tuple[bool, Numbers]]]:
        async with AsyncLimiter(url, on_store_error="closed") as limiter:

            async def send(name: str) -> tuple[bool, Numbers]:
                """Whether this caller's request was decided, and the result."""
                while True:
                    record = IdempotencyRecord(name, b"x" * 16, b"")
                    prepared = [limiter.prepare(Op.TAKE, user, PLAN) for user in USERS]
                    decisions = await limiter.decide_once(prepared, record)
                    if decisions is not None:
                        return True, tuple((decision.allowed, decision.remaining) for decision in decisions)
                    if record.replay is not None:
                        return False, replayed(record.replay)
                    await asyncio.sleep(0)

            outcomes = [
                list(await asyncio.gather(*(send(f"n{turn}") for _ in range(REPLAYS)))) for turn in range(ROUNDS)
            ]
            left = [(await limiter.peek(user, PLAN)).remaining for user in USERS]
            assert left == [1000 - ROUNDS] * len(USERS)
            assert limiter.store_failures == 0
            return outcomes

    for turn, outcomes in enumerate(asyncio.run(race())):
        assert [decided for decided, _ in outcomes].count(True) == 1
        assert {numbers for _, numbers in outcomes} == {((True, 999 - turn),) * len(USERS)}


def test_concurrent_threads(url: str) -> None:
    """Each with its own connections, like processes."""
    algorithm = build(Limit.parse(PLAN), "plan")

    def send(name: str, start: Barrier) -> tuple[bool, Numbers]:
        store = open_store(url)
        assert isinstance(store, RedisStore)
        store.connect()
        start.wait()
        try:
            while True:
                record = IdempotencyRecord(name, b"x" * 16, b"")
                replies = store.apply([Request(Op.TAKE, [Member(user, algorithm, 1)], record) for user in USERS])
                if record.replay is not None:
                    return False, replayed(record.replay)
                if not record.pending:
                    return True, tuple((reply[0].decision.allowed, reply[0].decision.remaining) for reply in replies)
        finally:
            store.close()

    for turn in range(2):
        start = Barrier(REPLAYS)
        with ThreadPoolExecutor(REPLAYS) as pool:
            outcomes = list(pool.map(send, [f"n{turn}"] * REPLAYS, [start] * REPLAYS))
        assert [decided for decided, _ in outcomes].count(True) == 1
        assert {numbers for _, numbers in outcomes} == {((True, 999 - turn),) * len(USERS)}
