"""Slot migration in a cluster, step by step and under load: no error, and exact counts.

During a migration the keys of a slot are on two nodes: new keys belong on the target (ASK), and a script with keys on
both nodes can run on neither (TRYAGAIN). Afterwards the old node redirects (MOVED).
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis

from crestgate import AsyncLimiter, Limiter
from crestgate.stores.port import IdempotencyRecord, Member, Op, Request, Store
from crestgate.testing import AsyncStoreAdapter, FakeClock
from servers.redis import RedisCluster
from unit.stores.redis.store_requests import apply, limit, peek, store_at, take

SLOT = 13907
"""That of the tag {0}, which all keys of these tests have (tags=1)."""
LIMITS = ["1000000/year using fixed_window", "2000000/year using sliding_window_log"]
SUBJECTS = [f"user:{i}" for i in range(30)]


def ask(node: redis.Redis, *words: str | bytes | int) -> Any:
    return node.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py gives it no types


class Move:
    """The migration of one slot, in the steps of redis-cli."""

    def __init__(self, cluster: RedisCluster) -> None:
        self.from_server = cluster.master_of("{0}")
        self.to_server = next(node for node in cluster.masters if node is not self.from_server)
        self.source = redis.Redis(port=self.from_server.port)
        self.target = redis.Redis(port=self.to_server.port)
        self.source_id = ask(self.source, "CLUSTER MYID")
        self.target_id = ask(self.target, "CLUSTER MYID")

    def begin(self) -> None:
        ask(self.target, "CLUSTER SETSLOT", SLOT, "IMPORTING", self.source_id)
        ask(self.source, "CLUSTER SETSLOT", SLOT, "MIGRATING", self.target_id)

    def keys(self, most: int) -> int:
        """Migrate up to `count` keys; returns how many there were."""
        keys = ask(self.source, "CLUSTER GETKEYSINSLOT", SLOT, most)
        if keys:
            self.source.migrate("127.0.0.1", self.to_server.port, keys, 0, 5000)
        return len(keys)

    def end(self) -> None:
        ask(self.target, "CLUSTER SETSLOT", SLOT, "NODE", self.target_id)
        ask(self.source, "CLUSTER SETSLOT", SLOT, "NODE", self.target_id)


@pytest.fixture
def move(redis_cluster: RedisCluster) -> Iterator[Move]:
    """A migration that has not started; it is completed at the end of the test."""
    moving = Move(redis_cluster)
    moving.source.flushall()  # keys of these tests, and of earlier ones
    yield moving
    while moving.keys(100):
        pass
    moving.end()
    moving.source.close()
    moving.target.close()


@pytest.fixture(params=["sync", "async"])
def store(request: pytest.FixtureRequest, redis_cluster: RedisCluster) -> Iterator[Store]:
    opened = store_at(redis_cluster.url, FakeClock(1_700_000_000), prefix=uuid4(), tags=1)
    store = opened if request.param == "sync" else AsyncStoreAdapter(opened)
    yield store
    store.close()


def take_all(store: Store) -> list[int]:
    """What remains for each subject after one more request of each, in one batch."""
    batch = [Request(Op.TAKE, [Member(subject, limit("100/year"), 1)]) for subject in SUBJECTS]
    return [outcome.decision.remaining for (outcome,) in store.apply(batch)]


def test_batch_finds_its_counters_at_every_migration_step(store: Store, move: Move) -> None:
    assert take_all(store) == [99] * 30
    move.begin()
    assert take_all(store) == [98] * 30, "all on the old node"
    move.keys(7)
    assert take_all(store) == [97] * 30, "some on the new node"
    move.keys(1)
    assert [take(store, limit("100/year"), subject).remaining for subject in SUBJECTS] == [96] * 30
    move.keys(100)
    assert take_all(store) == [95] * 30, "all on the new node, which is not in charge yet"
    move.end()
    assert take_all(store) == [94] * 30, "the new node is in charge"


def test_new_counters_during_a_slot_migration(store: Store, move: Move) -> None:
    move.begin()
    assert take_all(store) == [99] * 30, "they do not exist yet"
    assert take_all(store) == [98] * 30
    assert move.keys(100) == 0, "and belong to the new node"
    move.end()
    assert take_all(store) == [97] * 30


def test_chain_over_two_nodes_is_atomic(store: Store, move: Move) -> None:
    chain = [Member("user:1", limit("5/year", "wide"), 1), Member("user:1", limit("2/year", "narrow"), 1)]
    assert all(outcome.decision.allowed for outcome in apply(store, Op.TAKE, *chain))
    move.begin()
    move.keys(1)
    verdicts = [[outcome.decision.allowed for outcome in apply(store, Op.TAKE, *chain)] for _ in range(3)]
    assert verdicts == [[True, True], [True, False], [True, False]]
    assert [peek(store, member.algorithm, "user:1").remaining for member in chain] == [3, 0]
    apply(store, Op.RESET, *chain)
    assert [peek(store, member.algorithm, "user:1").remaining for member in chain] == [5, 2]


def test_idempotent_requests_over_two_nodes(store: Store, move: Move) -> None:
    """Records and counters on two nodes: each group is decided at most once."""

    def batch(records: list[IdempotencyRecord]) -> list[Request]:
        return [Request(Op.TAKE, [Member(f"user:{i}", ours, 1)], record) for i, record in enumerate(records)]

    def records(names: range) -> list[IdempotencyRecord]:
        return [IdempotencyRecord(f"n{i}", b"x" * 16, b"") for i in names]

    ours = limit("100/year")
    store.apply(batch(records(range(10))))
    move.begin()
    move.keys(10)
    all_records = records(range(20))
    replies = store.apply(batch(all_records))
    assert [record.replay is not None for record in all_records] == [True] * 10 + [False] * 10
    assert [len(reply) for reply in replies] == [0] * 10 + [1] * 10
    move.keys(7)
    all_records = records(range(20))
    store.apply(batch(all_records))
    assert all(record.replay is not None for record in all_records)
    move.keys(100)
    move.end()
    all_records = records(range(20))
    store.apply(batch(all_records))
    assert all(record.replay is not None for record in all_records)
    assert [peek(store, ours, f"user:{i}").remaining for i in range(20)] == [99] * 20


# -- under load -------------------------------------------------------------------------------------------------------


def carry_over(move: Move) -> None:
    """Migrate the slot in small steps, with time for requests in between."""
    time.sleep(0.1)
    move.begin()
    time.sleep(0.1)
    for _ in range(30):
        move.keys(2)
        time.sleep(0.01)
    while move.keys(10):
        time.sleep(0.005)
    time.sleep(0.05)
    move.end()
    time.sleep(0.1)


def test_threads_continue_during_a_migration(redis_cluster: RedisCluster, move: Move) -> None:
    over = threading.Event()
    counts: list[Counter[str]] = []
    url = f"{redis_cluster.url}?prefix={uuid4()}&tags=1&timeout_ms=10000"
    with Limiter(url, on_store_error="closed") as limiter:

        def caller(seed: int) -> None:
            draw = random.Random(seed)
            count: Counter[str] = Counter()
            while not over.is_set():
                some = draw.sample(SUBJECTS, 5)
                decisions = limiter.check_many([(subject, LIMITS[0]) for subject in some])
                count.update(s for s, decision in zip(some, decisions, strict=True) if decision.reason == "ok")
                count[some[0]] += limiter.check(some[0], LIMITS).reason == "ok"
            counts.append(count)

        callers = [threading.Thread(target=caller, args=[seed]) for seed in range(4)]
        for thread in callers:
            thread.start()
        carry_over(move)
        over.set()
        for thread in callers:
            thread.join()
        assert limiter.store_failures == 0
        counted = sum(counts, Counter[str]())
        left = {subject: limiter.peek(subject, LIMITS[0]).remaining for subject in SUBJECTS}
    assert left == {subject: 1_000_000 - counted[subject] for subject in SUBJECTS}
    assert counted.total() > 100


def test_tasks_continue_during_a_migration(redis_cluster: RedisCluster, move: Move) -> None:
    url = f"{redis_cluster.url}?prefix={uuid4()}&tags=1&timeout_ms=10000"

    async def load() -> tuple[Counter[str], dict[str, int], int]:
        counts: Counter[str] = Counter()
        async with AsyncLimiter(url, on_store_error="closed") as limiter:
            carrying = asyncio.create_task(asyncio.to_thread(carry_over, move))

            async def caller(seed: int) -> None:
                draw = random.Random(seed)
                while not carrying.done():
                    subject = draw.choice(SUBJECTS)
                    limits = LIMITS if draw.random() < 0.3 else LIMITS[0]
                    decision = await limiter.check(subject, limits)
                    counts[subject] += decision.reason == "ok"

            await asyncio.gather(*map(caller, range(30)))
            await carrying
            left = {subject: (await limiter.peek(subject, LIMITS[0])).remaining for subject in SUBJECTS}
            return counts, left, limiter.store_failures

    counted, left, failures = asyncio.run(load())
    assert failures == 0
    assert left == {subject: 1_000_000 - counted[subject] for subject in SUBJECTS}
    assert counted.total() > 100
