"""What is decided once on its way through the engine: kept whole, never given back, and not answered by a policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from headgate import AsyncLimiter, Limit, Limiter, StoreError
from headgate.core.algorithms import build
from headgate.engine.failure import FailurePolicy
from headgate.stores.memory import MemoryStore
from headgate.stores.port import Member, Once, Op, PartlyAnswered, Replies, Request
from headgate.stores.sharded import ShardedStore
from headgate.testing import FakeClock
from shard import Shard
from slow_store import SlowStore

FIVE = build(Limit.parse("5/hour"), "5/hour")
BODY = bytes(16)
START = 1_700_000_000


def group(once: Once | None, *keys: str) -> list[Request]:
    return [Request(Op.TAKE, [Member(key, FIVE, 1)], once) for key in keys]


def used(store: MemoryStore, key: str) -> int:
    return 5 - store.apply([Request(Op.PEEK, [Member(key, FIVE, 0)])])[0][0].decision.remaining


# -- splitting --------------------------------------------------------------------------------------------------------


def test_a_group_is_not_parted_when_a_batch_is_split() -> None:
    store = SlowStore(most_members=3)
    first, second = Once("n", BODY, b""), Once("m", BODY, b"")
    batch = [*group(None, "a", "b"), *group(first, "c", "d"), *group(second, *"efghi"), *group(None, *"jklm")]
    pieces = [[request.members[0].key for request in piece] for piece in store.pieces(batch)]
    assert pieces == [["a", "b"], ["c", "d"], ["e", "f", "g", "h", "i"], ["j", "k", "l"], ["m"]]


def test_what_is_about_a_record_alone_is_a_piece_like_any() -> None:
    store = SlowStore(most_members=2)
    once = Once("n", BODY, b"")
    batch = [Request(Op.CLAIM, [], once), *group(None, "a", "b", "c"), Request(Op.KEEP, [], once)]
    assert [[request.op for request in piece] for piece in store.pieces(batch)] == [
        [Op.CLAIM, Op.TAKE, Op.TAKE],
        [Op.TAKE, Op.KEEP],
    ]


# -- callers that have gone -------------------------------------------------------------------------------------------


async def cancelled(store: SlowStore, requests: list[Request]) -> None:
    """Ask, and be gone when the answer comes."""
    limiter = AsyncLimiter(store)
    goes = asyncio.create_task(limiter._apply(requests))
    while not store.held:
        await asyncio.sleep(0)
    goes.cancel()
    await store.answer_all()
    with pytest.raises(asyncio.CancelledError):
        await goes
    await store.answer_all()


def test_what_is_decided_once_for_a_task_that_has_gone_is_kept_for_its_repeat() -> None:
    async def scenario() -> None:
        store = SlowStore()
        await cancelled(store, [*group(Once("n", BODY, b""), "a"), *group(None, "b")])
        assert (used(store.inner, "a"), used(store.inner, "b")) == (1, 0)
        repeat = Once("n", BODY, b"")
        assert store.inner.apply(group(repeat, "a")) == [[]]
        assert repeat.kept is not None

    asyncio.run(scenario())


def test_a_repeat_whose_task_has_gone_gives_nothing_back() -> None:
    async def scenario() -> None:
        store = SlowStore()
        store.inner.apply(group(Once("n", BODY, b""), "a", "b"))
        await cancelled(store, group(Once("n", BODY, b""), "a", "b"))
        assert (used(store.inner, "a"), used(store.inner, "b")) == (1, 1)

    asyncio.run(scenario())


def test_a_partial_answer_gives_back_what_was_not_kept_and_only_that() -> None:
    class HalfAway(SlowStore):
        def decide(self, batch: Sequence[Request]) -> Replies:
            replies = self.inner.apply(batch)
            if len(replies) < 4:
                return replies
            raise PartlyAnswered([*replies[:3], [StoreError("away")]])

    async def scenario() -> None:
        store = HalfAway()
        kept, broken, old = Once("n", BODY, b""), Once("m", BODY, b""), Once("old", BODY, b"")
        store.inner.apply(group(Once("old", BODY, b""), "d"))
        await cancelled(store, [*group(kept, "a"), *group(old, "d"), *group(broken, "b", "c")])
        assert [used(store.inner, key) for key in "abd"] == [1, 0, 1]

    asyncio.run(scenario())


# -- stores that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["open", "closed", "local"])
def test_a_policy_answers_what_was_missed_and_leaves_repeats_empty(policy: str) -> None:
    clock = FakeClock(START)
    failure = FailurePolicy(policy, clock)  # type: ignore[arg-type]
    (there,) = MemoryStore(clock=clock).apply(group(None, "a"))
    error = PartlyAnswered([there, [], [StoreError("away")]])
    answered = failure.answer(error, [*group(None, "a"), *group(Once("n", BODY, b""), "b", "c")])
    assert [len(reply) for reply in answered.replies] == [1, 0, 1]
    assert answered.undoing == []
    assert failure.failures == 1


def two_shards() -> tuple[ShardedStore, Shard, Shard, str, str]:
    """Two shards, and a key in each."""
    clock = FakeClock(START)
    here, there = Shard(clock), Shard(clock)
    store = ShardedStore({"a": here, "b": there})
    keys = [next(f"key:{n}" for n in range(100) if store.place_of(f"key:{n}") == place) for place in (0, 1)]
    return store, here, there, keys[0], keys[1]


def test_what_a_policy_answered_is_decided_anew_when_the_store_is_back() -> None:
    store, here, there, mine, theirs = two_shards()
    limiter = Limiter(store)
    once = Once(mine, BODY, b"")  # the record lives in the first shard, and a member in the second
    there.away = True
    replies = limiter._apply(group(once, mine, theirs))
    assert [reply[0].decision.reason for reply in replies] == ["ok", "fail_open"]
    assert (once.kept, once.pending) == (None, False)
    there.away = False
    repeat = Once(mine, BODY, b"")
    replies = limiter._apply(group(repeat, mine, theirs))
    assert [reply[0].decision.reason for reply in replies] == ["ok", "ok"]
    again = Once(mine, BODY, b"")
    assert limiter._apply(group(again, mine, theirs)) == [[], []]
    assert again.kept is not None
    assert (used(here.inner, mine), used(there.inner, theirs)) == (2, 1)


def test_a_record_that_cannot_be_reached_leaves_the_group_to_the_policy() -> None:
    store, here, there, mine, theirs = two_shards()
    here.away = True
    limiter = Limiter(store, on_store_error="closed")
    replies = limiter._apply([*group(Once(mine, BODY, b""), theirs), *group(None, theirs)])
    assert [reply[0].decision.reason for reply in replies] == ["fail_closed", "ok"]
    assert used(there.inner, theirs) == 1, "what cannot be kept is not decided"


@pytest.mark.parametrize("policy", ["open", "closed", "local"])
def test_a_request_without_members_whose_record_is_away_is_no_more_than_a_failure(policy: str) -> None:
    store, here, _, mine, theirs = two_shards()
    here.away = True
    limiter = Limiter(store, on_store_error=policy)  # type: ignore[arg-type]
    once = Once(mine, BODY, b"")
    assert limiter._apply([Request(Op.TAKE, [], once)]) == [[]]
    assert limiter.store_failures == 1
    assert (once.kept, once.pending) == (None, False)
    replies = limiter._apply([Request(Op.TAKE, [], once), *group(once, theirs), Request(Op.TAKE, [], once)])
    assert [len(reply) for reply in replies] == [0, 1, 0]
    assert limiter.store_failures == 4


def test_a_request_without_members_whose_task_has_gone_gives_nothing_back() -> None:
    class RecordAway(SlowStore):
        def decide(self, batch: Sequence[Request]) -> Replies:
            replies = self.inner.apply(batch)
            raise PartlyAnswered([*replies[:1], [StoreError("away")]])

    async def scenario() -> None:
        store = RecordAway()
        requests = [*group(None, "a"), Request(Op.TAKE, [], Once("n", BODY, b""))]
        limiter = AsyncLimiter(store)
        goes = asyncio.create_task(limiter._apply(requests))
        while not store.held:
            await asyncio.sleep(0)
        goes.cancel()
        store.answer()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [batch[0].op for batch, _ in store.held] == [Op.GIVE_BACK]

    asyncio.run(scenario())


# -- records that are too long ----------------------------------------------------------------------------------------


def test_a_record_that_is_too_long_is_refused_before_others_share_its_batch() -> None:
    async def scenario() -> None:
        store = SlowStore()
        limiter = AsyncLimiter(store)
        other = asyncio.create_task(limiter._apply(group(None, "a")))
        large = asyncio.create_task(limiter._apply(group(Once("n", BODY, bytes(300_000)), "b")))
        while not store.held:
            await asyncio.sleep(0)
        await store.answer_all()
        with pytest.raises(ValueError, match="may have 262,144: ask for less at a time"):
            await large
        assert (await other)[0][0].decision.reason == "ok"
        assert store.batches == [["a"]]
        assert limiter.store_failures == 0

    asyncio.run(scenario())


def test_no_policy_answers_a_record_that_is_too_long(tmp_path: Path) -> None:
    for url in ("memory://", f"shared://{tmp_path}/counters", f"sqlite:///{tmp_path}/counters.db"):
        with Limiter(url) as limiter:
            with pytest.raises(ValueError, match="may have 262,144: ask for less at a time"):
                limiter._apply(group(Once("n", BODY, bytes(300_000)), "a"))
            assert limiter.store_failures == 0
            assert limiter._apply(group(None, "a"))[0][0].decision.remaining == 4, "nothing was charged"
