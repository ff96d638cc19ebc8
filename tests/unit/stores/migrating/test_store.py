"""Two stores as one, while counters move: what is carried, where requests go, and what happens when one store fails."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from crestgate import AsyncLimiter, ConfigError, Limit, Limiter, Migration, StoreError
from crestgate.core.algorithms import build
from crestgate.stores.memory import MemoryStore
from crestgate.stores.migrating.share import Share
from crestgate.stores.migrating.store import MigratingStore
from crestgate.stores.named import NamedStoreGroup
from crestgate.stores.port import BatchOutcomes, LocalStore, Member, Op, Outcome, PartialStoreError, Request, Store
from crestgate.stores.sharded import ShardedStore
from crestgate.testing import FakeClock, StoreConformance, read_vectors, vector_mismatches

VECTORS = Path(__file__).parents[3] / "vectors" / "vectors.jsonl"
SIX = ["token_bucket", "leaky_bucket", "gcra", "fixed_window", "sliding_window_log", "sliding_window_counter"]


def migrating(clock: FakeClock, percent: float) -> MigratingStore:
    return MigratingStore(MemoryStore(clock=clock), MemoryStore(clock=clock), Share(percent=percent))


class TestNothingMoved(StoreConformance):
    def make_store(self, clock: FakeClock) -> Store:
        return migrating(clock, 0)


class TestHalfMoved(StoreConformance):
    def make_store(self, clock: FakeClock) -> Store:
        return migrating(clock, 50)


class TestAllMoved(StoreConformance):
    def make_store(self, clock: FakeClock) -> Store:
        return migrating(clock, 100)


@pytest.mark.parametrize("percent", [0, 100])
def test_vectors(percent: int) -> None:
    with VECTORS.open() as lines:
        sequences = list(itertools.islice(read_vectors(lines), 0, None, 40))
    wrong = [
        one for sequence in sequences for one in vector_mismatches(sequence, lambda clock: migrating(clock, percent))
    ]
    assert wrong == []


class Breakable(LocalStore):
    """A memory store that fails while `broken` is set."""

    def __init__(self, clock: FakeClock) -> None:
        self.inner = MemoryStore(clock=clock)
        self.clock = clock
        self.waits = False
        self.timeout = 0.0
        self.broken = False
        self.calls = 0
        self.largest = 0
        """Members of the largest batch."""

    def apply(self, batch: Sequence[Request]) -> BatchOutcomes:
        self.calls += 1
        self.largest = max(self.largest, sum(len(request.members) for request in batch))
        if self.broken:
            raise StoreError("does not answer")
        return self.inner.apply(batch)

    def close(self) -> None:
        self.inner.close()


class Pair:
    """Two stores, and limiters over them with different percentages."""

    def __init__(self) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.old, self.new = Breakable(self.clock), Breakable(self.clock)

    def limiter(self, percent: float, policy: str = "closed", min_stay: int = 0) -> Limiter:
        store = MigratingStore(self.old, self.new, Share(percent=percent), min_stay)
        return Limiter(store, on_store_error=policy)  # type: ignore[arg-type]  # one of the policies


@pytest.mark.parametrize("algorithm", SIX)
def test_usage_is_carried_forward_and_back(algorithm: str) -> None:
    pair, limit = Pair(), f"10/hour using {algorithm}"
    before, after = pair.limiter(0), pair.limiter(100)
    for _ in range(4):
        assert before.check("user:1", limit)
    assert after.peek("user:1", limit).remaining == 6
    assert after.check("user:1", limit, cost=3).remaining == 3
    assert before.check("user:1", limit).remaining == 2
    assert after.check("user:1", limit, cost=2).remaining == 0
    assert not before.check("user:1", limit)
    assert not after.check("user:1", limit)


@pytest.mark.parametrize("algorithm", SIX)
def test_carried_usage_recovers_within_a_period(algorithm: str) -> None:
    pair, limit = Pair(), f"10/hour using {algorithm}"
    assert pair.limiter(0).check("user:1", limit, cost=10)
    assert not pair.limiter(100).check("user:1", limit)
    # Carried usage counts as used now: in a sliding window it stays for a whole period, weighted for two windows.
    pair.clock.advance(2 * 3600)
    assert pair.limiter(100).check("user:1", limit, cost=10)


def test_a_carried_counter_does_not_need_the_old_store() -> None:
    pair = Pair()
    assert pair.limiter(0).check("user:1", "10/hour", cost=4)
    after = pair.limiter(100)
    assert after.check("user:1", "10/hour").remaining == 5
    pair.old.broken = True
    calls = pair.old.calls
    assert after.check("user:1", "10/hour").remaining == 4
    assert pair.old.calls == calls
    assert after.check("user:2", "10/hour").reason == "fail_closed"  # it may have been used there


def test_counters_that_stay_do_not_need_the_new_store() -> None:
    pair = Pair()
    pair.new.broken = True
    before = pair.limiter(0)
    assert before.check("user:1", "10/hour", cost=4).remaining == 6
    assert before.check("user:1", "10/hour", cost=4).remaining == 2


def test_moving_back_needs_the_new_store() -> None:
    pair = Pair()
    assert pair.limiter(100).check("user:1", "10/hour", cost=9)
    pair.new.broken = True
    assert pair.limiter(0).check("user:1", "10/hour", cost=2).reason == "fail_closed"
    pair.new.broken = False
    assert pair.limiter(0).check("user:1", "10/hour", cost=2).reason == "limited"


def test_counters_in_use_keep_their_place_for_longer_than_a_gate_lives() -> None:
    pair = Pair()
    after = pair.limiter(100)
    assert after.check("user:1", "1000/hour")
    for _ in range(20):
        pair.clock.advance(600)
        assert after.check("user:1", "1000/hour")
    pair.old.broken = True
    assert after.check("user:1", "1000/hour").reason == "ok"
    pair.old.broken, pair.new.broken = False, True
    assert pair.limiter(0).check("user:1", "1000/hour").reason == "fail_closed"  # the old store knows where it is


def test_disagreeing_instances_follow_a_counter_for_a_while() -> None:
    pair = Pair()
    before, after = pair.limiter(0, min_stay=10_000_000), pair.limiter(100, min_stay=10_000_000)
    assert after.check("user:1", "100/hour").remaining == 99
    assert before.check("user:1", "100/hour").remaining == 98
    assert after.check("user:1", "100/hour").remaining == 97
    assert isinstance(before.store, MigratingStore)
    assert before.store.carrier.counts.carried == [0, 0]
    pair.clock.advance(11)
    assert before.check("user:1", "100/hour").remaining == 96
    assert before.store.carrier.counts.carried == [1, 0]


def test_a_chain_over_both_stores_is_all_or_nothing() -> None:
    pair = Pair()
    store = MigratingStore(pair.old, pair.new, Share(percent=50))
    moved = next(f"user:{n}" for n in range(100) if store.share.has_subject(f"user:{n}"))
    stays = next(f"user:{n}" for n in range(100) if not store.share.has_subject(f"user:{n}"))
    limit = build(Limit.parse("2/hour"), "limit")

    def take() -> list[bool]:
        request = Request(Op.TAKE, [Member(moved, limit, 1), Member(stays, limit, 1)])
        return [outcome.decision.allowed for outcome in store.apply([request])[0]]

    store.apply([Request(Op.TAKE, [Member(moved, limit, 1)])])
    assert take() == [True, True]
    assert take() == [True, False] or take() == [False, True]
    (peeked,) = store.apply([Request(Op.PEEK, [Member(moved, limit, 0), Member(stays, limit, 0)])])
    assert [outcome.decision.remaining for outcome in peeked] == [0, 1]


def test_reset_and_settling_reach_a_counter_that_moved() -> None:
    pair = Pair()
    before, after = pair.limiter(0), pair.limiter(100)
    with before.reserve("user:1", "100/hour", cost=50) as reservation:
        assert after.peek("user:1", "100/hour").remaining == 50
        reservation.settle(20)
    assert after.peek("user:1", "100/hour").remaining == 80
    before.reset("user:1", "100/hour")
    assert after.peek("user:1", "100/hour").remaining == 100


def test_a_blocking_limit_blocks() -> None:
    assert Pair().limiter(100).check("user:1", "0/hour").reason == "blocked"


def test_reachable_part_of_a_chain_binds_where_a_store_is_several() -> None:
    clock = FakeClock(1_700_000_000)
    servers = {"a": Breakable(clock), "b": Breakable(clock)}
    sharded = ShardedStore(servers)
    keys = {sharded.node_of(key): key for key in map(str, range(100))}
    limits = build(Limit.parse("5/hour"), "five"), build(Limit.parse("3/hour"), "three")
    store = MigratingStore(sharded, Breakable(clock), Share(percent=0))
    chain = Request(Op.TAKE, [Member(keys[node], limit, 1) for node, limit in enumerate(limits)])
    for _ in range(3):
        assert all(outcome.decision.allowed for outcome in store.apply([chain])[0])
    servers["a"].broken = True
    with pytest.raises(PartialStoreError) as failure:
        store.apply([chain])
    lost, denied = failure.value.outcomes[0]
    assert isinstance(lost, StoreError)
    assert isinstance(denied, Outcome)
    assert not denied.decision.allowed


def test_reset_without_the_new_store() -> None:
    pair = Pair()
    pair.new.broken = True
    limiter = pair.limiter(0)
    limiter.check("user:1", "10/hour")
    limiter.reset("user:1", "10/hour")
    assert limiter.peek("user:1", "10/hour").remaining == 10
    pair.new.broken = False
    moved = pair.limiter(100)
    moved.check("user:1", "10/hour")
    pair.new.broken = True
    with pytest.raises(StoreError):
        limiter.reset("user:1", "10/hour")  # it is in the new store


def test_large_batch_is_split_before_it_is_carried() -> None:
    """A store that split it would do so between a reset and an enter."""
    pair = Pair()
    there, back = pair.limiter(100), pair.limiter(0)
    checks = [(f"user:{number}", "10/hour") for number in range(250)]
    assert {decision.remaining for decision in there.check_many(checks)} == {9}
    pair.old.largest = 0
    assert [decision.remaining for decision in back.check_many(checks)] == [8] * 250
    assert pair.old.largest <= 500
    pair.new.broken = True
    assert {decision.reason for decision in there.check_many(checks)} == {"fail_closed"}


def test_group_has_the_smallest_batches_of_its_stores() -> None:
    clock = FakeClock(1_700_000_000)
    group = NamedStoreGroup(migrating(clock, 50), {"hot": MemoryStore(clock=clock)})
    assert group.max_members == migrating(clock, 50).max_members < 500
    assert group.several_nodes


def test_share_is_stable_and_grows() -> None:
    keys = [f"user:{number}" for number in range(2000)]
    moved = [{key for key in keys if Share(percent=percent).has_subject(key)} for percent in (0, 10, 25, 60, 100)]
    assert [len(some) for some in moved] == sorted(len(some) for some in moved)
    assert all(few <= many for few, many in itertools.pairwise(moved))
    assert moved[0] == set()
    assert moved[-1] == set(keys)
    assert 400 < len(moved[2]) < 600


def test_share_of_rules_and_endpoints() -> None:
    plain, rule = build(Limit.parse("1/s"), "plain"), build(Limit.parse("1/s"), "slot", "orders")
    rule.endpoint = "/api/v1/orders/*"
    assert not Share(rules=["plain"]).has_limit(plain)  # not a rule
    assert Share(rules=["orders"]).has_limit(rule)
    assert not Share(rules=["other"]).has_limit(rule)
    for endpoint, moved in (
        ("/api/v1/orders/*", True),
        ("/api/v1/*", True),
        ("/api/v1/orders", True),
        ("/api/v1/order", False),
        ("/api/v2/*", False),
        ("*", True),
    ):
        assert Share(endpoints=[endpoint]).has_limit(rule) is moved, endpoint


@pytest.mark.parametrize("percent", [-1, 101, "25", True, None])
def test_bad_percentages_are_errors(percent: object) -> None:
    with pytest.raises(ConfigError, match="percent must be a number from 0 to 100"):
        Share(percent=percent)  # type: ignore[arg-type]  # that is the point


def test_on_an_event_loop() -> None:
    async def check() -> list[int]:
        async with AsyncLimiter(Migration("memory://", "memory://", percent=50)) as limiter:
            checks = [limiter.check(f"user:{number % 20}", "10/hour") for number in range(100)]
            return [decision.remaining for decision in await asyncio.gather(*checks)]

    assert sorted(asyncio.run(check())) == sorted([5, 6, 7, 8, 9] * 20)


def test_one_reachable_store_is_enough_to_start(caplog: pytest.LogCaptureFixture) -> None:
    with Limiter(Migration("memory://", "redis://127.0.0.1:1/0", percent=0)) as limiter:
        assert limiter.check("user:1", "10/hour").reason == "ok"
        assert limiter.title == "local memory, moving to Redis at 127.0.0.1:1"
    assert "a store of the migration is unreachable" in caplog.text
    with pytest.raises(StoreError):
        Limiter(Migration("redis://127.0.0.1:2/0", "redis://127.0.0.1:1/0", percent=0))
