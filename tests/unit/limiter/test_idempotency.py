"""Idempotent requests in the limiter: not split, not given back, not answered by a policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from crestgate import AsyncLimiter, Limit, Limiter, StoreError
from crestgate.core.algorithms import build
from crestgate.limiter.failure_policy import FailurePolicy
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import BatchOutcomes, IdempotencyRecord, Member, Op, PartialStoreError, Request
from crestgate.stores.sharded import ShardedStore
from crestgate.testing import FakeClock
from shard import Shard
from slow_store import SlowStore

FIVE = build(Limit.parse("5/hour"), "5/hour")
BODY = bytes(16)
START = 1_700_000_000


def group(record: IdempotencyRecord | None, *keys: str) -> list[Request]:
    return [Request(Op.TAKE, [Member(key, FIVE, 1)], record) for key in keys]


def used(store: MemoryStore, key: str) -> int:
    return 5 - store.apply([Request(Op.PEEK, [Member(key, FIVE, 0)])])[0][0].decision.remaining


# -- splitting --------------------------------------------------------------------------------------------------------


def test_idempotent_group_is_not_split() -> None:
    store = SlowStore(max_members=3)
    first, second = IdempotencyRecord("n", BODY, b""), IdempotencyRecord("m", BODY, b"")
    batch = [*group(None, "a", "b"), *group(first, "c", "d"), *group(second, *"efghi"), *group(None, *"jklm")]
    pieces = [[request.members[0].key for request in piece] for piece in store.pieces(batch)]
    assert pieces == [["a", "b"], ["c", "d"], ["e", "f", "g", "h", "i"], ["j", "k", "l"], ["m"]]


def test_request_about_a_record_alone_can_be_split_off() -> None:
    store = SlowStore(max_members=2)
    record = IdempotencyRecord("n", BODY, b"")
    batch = [Request(Op.CLAIM, [], record), *group(None, "a", "b", "c"), Request(Op.SAVE, [], record)]
    assert [[request.op for request in piece] for piece in store.pieces(batch)] == [
        [Op.CLAIM, Op.TAKE, Op.TAKE],
        [Op.TAKE, Op.SAVE],
    ]


# -- cancelled callers ------------------------------------------------------------------------------------------------


async def cancelled(store: SlowStore, requests: list[Request]) -> None:
    """Send requests, and cancel before the reply arrives."""
    limiter = AsyncLimiter(store)
    goes = asyncio.create_task(limiter.apply(requests))
    while not store.held:
        await asyncio.sleep(0)
    goes.cancel()
    await store.answer_all()
    with pytest.raises(asyncio.CancelledError):
        await goes
    await store.answer_all()


def test_idempotent_result_of_a_cancelled_task_is_kept() -> None:
    async def scenario() -> None:
        store = SlowStore()
        await cancelled(store, [*group(IdempotencyRecord("n", BODY, b""), "a"), *group(None, "b")])
        assert (used(store.inner, "a"), used(store.inner, "b")) == (1, 0)
        repeat = IdempotencyRecord("n", BODY, b"")
        assert store.inner.apply(group(repeat, "a")) == [[]]
        assert repeat.replay is not None

    asyncio.run(scenario())


def test_cancelled_replay_gives_nothing_back() -> None:
    async def scenario() -> None:
        store = SlowStore()
        store.inner.apply(group(IdempotencyRecord("n", BODY, b""), "a", "b"))
        await cancelled(store, group(IdempotencyRecord("n", BODY, b""), "a", "b"))
        assert (used(store.inner, "a"), used(store.inner, "b")) == (1, 1)

    asyncio.run(scenario())


def test_partial_result_gives_back_unsaved_requests_only() -> None:
    class HalfAway(SlowStore):
        def decide(self, batch: Sequence[Request]) -> BatchOutcomes:
            replies = self.inner.apply(batch)
            if len(replies) < 4:
                return replies
            raise PartialStoreError([*replies[:3], [StoreError("away")]])

    async def scenario() -> None:
        store = HalfAway()
        kept, broken, old = (
            IdempotencyRecord("n", BODY, b""),
            IdempotencyRecord("m", BODY, b""),
            IdempotencyRecord("old", BODY, b""),
        )
        store.inner.apply(group(IdempotencyRecord("old", BODY, b""), "d"))
        await cancelled(store, [*group(kept, "a"), *group(old, "d"), *group(broken, "b", "c")])
        assert [used(store.inner, key) for key in "abd"] == [1, 0, 1]

    asyncio.run(scenario())


# -- stores that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["open", "closed", "local"])
def test_policy_answers_failed_members_and_leaves_replays_empty(policy: str) -> None:
    clock = FakeClock(START)
    failure = FailurePolicy(policy, clock)  # type: ignore[arg-type]
    (there,) = MemoryStore(clock=clock).apply(group(None, "a"))
    error = PartialStoreError([there, [], [StoreError("away")]])
    answered = failure.answer(error, [*group(None, "a"), *group(IdempotencyRecord("n", BODY, b""), "b", "c")])
    assert [len(reply) for reply in answered.replies] == [1, 0, 1]
    assert answered.undo == []
    assert failure.failures == 1


def two_shards() -> tuple[ShardedStore, Shard, Shard, str, str]:
    """Two shards, and a key in each."""
    clock = FakeClock(START)
    here, there = Shard(clock), Shard(clock)
    store = ShardedStore({"a": here, "b": there})
    keys = [next(f"key:{n}" for n in range(100) if store.node_of(f"key:{n}") == shard) for shard in (0, 1)]
    return store, here, there, keys[0], keys[1]


def test_policy_results_are_not_saved() -> None:
    store, here, there, mine, theirs = two_shards()
    limiter = Limiter(store)
    record = IdempotencyRecord(mine, BODY, b"")  # the record lives in the first shard, and a member in the second
    there.away = True
    replies = limiter.apply(group(record, mine, theirs))
    assert [reply[0].decision.reason for reply in replies] == ["ok", "fail_open"]
    assert (record.replay, record.pending) == (None, False)
    there.away = False
    repeat = IdempotencyRecord(mine, BODY, b"")
    replies = limiter.apply(group(repeat, mine, theirs))
    assert [reply[0].decision.reason for reply in replies] == ["ok", "ok"]
    again = IdempotencyRecord(mine, BODY, b"")
    assert limiter.apply(group(again, mine, theirs)) == [[], []]
    assert again.replay is not None
    assert (used(here.inner, mine), used(there.inner, theirs)) == (2, 1)


def test_failed_record_leaves_the_group_to_the_policy() -> None:
    store, here, there, mine, theirs = two_shards()
    here.away = True
    limiter = Limiter(store, on_store_error="closed")
    replies = limiter.apply([*group(IdempotencyRecord(mine, BODY, b""), theirs), *group(None, theirs)])
    assert [reply[0].decision.reason for reply in replies] == ["fail_closed", "ok"]
    assert used(there.inner, theirs) == 1, "without its record, a request is not decided"


@pytest.mark.parametrize("policy", ["open", "closed", "local"])
def test_failed_record_of_a_request_without_members_counts_as_failure(policy: str) -> None:
    store, here, _, mine, theirs = two_shards()
    here.away = True
    limiter = Limiter(store, on_store_error=policy)  # type: ignore[arg-type]
    record = IdempotencyRecord(mine, BODY, b"")
    assert limiter.apply([Request(Op.TAKE, [], record)]) == [[]]
    assert limiter.store_failures == 1
    assert (record.replay, record.pending) == (None, False)
    replies = limiter.apply([Request(Op.TAKE, [], record), *group(record, theirs), Request(Op.TAKE, [], record)])
    assert [len(reply) for reply in replies] == [0, 1, 0]
    assert limiter.store_failures == 4


def test_cancelled_request_without_members_gives_nothing_back() -> None:
    class RecordAway(SlowStore):
        def decide(self, batch: Sequence[Request]) -> BatchOutcomes:
            replies = self.inner.apply(batch)
            raise PartialStoreError([*replies[:1], [StoreError("away")]])

    async def scenario() -> None:
        store = RecordAway()
        requests = [*group(None, "a"), Request(Op.TAKE, [], IdempotencyRecord("n", BODY, b""))]
        limiter = AsyncLimiter(store)
        goes = asyncio.create_task(limiter.apply(requests))
        while not store.held:
            await asyncio.sleep(0)
        goes.cancel()
        store.answer()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [batch[0].op for batch, _ in store.held] == [Op.GIVE_BACK]

    asyncio.run(scenario())


# -- records that are too long ----------------------------------------------------------------------------------------


def test_oversized_record_is_refused_before_it_is_batched() -> None:
    async def scenario() -> None:
        store = SlowStore()
        limiter = AsyncLimiter(store)
        other = asyncio.create_task(limiter.apply(group(None, "a")))
        large = asyncio.create_task(limiter.apply(group(IdempotencyRecord("n", BODY, bytes(300_000)), "b")))
        while not store.held:
            await asyncio.sleep(0)
        await store.answer_all()
        with pytest.raises(ValueError, match="more than 262,144: send fewer requests at a time"):
            await large
        assert (await other)[0][0].decision.reason == "ok"
        assert store.batches == [["a"]]
        assert limiter.store_failures == 0

    asyncio.run(scenario())


def test_oversized_record_is_not_answered_by_the_policy(tmp_path: Path) -> None:
    for url in ("memory://", f"shared://{tmp_path}/counters", f"sqlite:///{tmp_path}/counters.db"):
        with Limiter(url) as limiter:
            with pytest.raises(ValueError, match="more than 262,144: send fewer requests at a time"):
                limiter.apply(group(IdempotencyRecord("n", BODY, bytes(300_000)), "a"))
            assert limiter.store_failures == 0
            assert limiter.apply(group(None, "a"))[0][0].decision.remaining == 4, "nothing was charged"
