"""Chains over several shards of which some fail: decided parts bind, the policy answers the rest."""

from __future__ import annotations

from typing import Literal

import pytest

from crestgate import Limit, Limiter, RateLimitExceeded, StoreError
from crestgate.core.algorithms import build
from crestgate.stores.port import Member, Op, Request
from crestgate.stores.sharded import ShardedStore
from crestgate.testing import FakeClock
from shard import Shard

Policy = Literal["open", "closed", "local"]


class Two:
    """A limiter on two shards, and a key that lives in each."""

    def __init__(self, policy: Policy) -> None:
        clock = FakeClock(1_700_000_000)
        self.store = ShardedStore({"a": Shard(clock), "b": Shard(clock)})
        self.limiter = Limiter(self.store, on_store_error=policy)
        keys = (f"user:{n}" for n in range(100))
        self.here = next(key for key in keys if self.store.node_of(key) == 0)
        self.there = next(key for key in keys if self.store.node_of(key) == 1)

    def shard(self, number: int) -> Shard:
        store = self.store.stores[number]
        assert isinstance(store, Shard)
        return store

    def remaining(self, number: int, key: str) -> int:
        """Read from the counters of one shard."""
        algorithm = build(Limit.parse("3/hour"), "limit")
        return self.shard(number).inner.apply([Request(Op.PEEK, [Member(key, algorithm, 1)])])[0][0].decision.remaining

    def check(self) -> tuple[bool, list[str]]:
        """One request with a counter in each shard."""
        algorithm = build(Limit.parse("3/hour"), "limit")
        members = [Member(self.here, algorithm, 1), Member(self.there, algorithm, 1)]
        (decision,) = self.limiter.decide([self.limiter.prepare_counters(Op.TAKE, members)])
        return decision.allowed, [part.reason for part in decision.parts]


def test_both_shards_decide() -> None:
    two = Two("open")
    assert two.check() == (True, ["ok", "ok"])
    assert (two.remaining(0, two.here), two.remaining(1, two.there)) == (2, 2)


def test_open_policy_admits_the_failed_part() -> None:
    two = Two("open")
    two.shard(1).away = True
    assert [two.check() for _ in range(4)] == [(True, ["ok", "fail_open"])] * 3 + [(False, ["limited", "fail_open"])]
    assert two.limiter.store_failures == 4


def test_closed_policy_denies_and_gives_back() -> None:
    for missing in (0, 1):
        two = Two("closed")
        two.shard(missing).away = True
        allowed, reasons = two.check()
        assert not allowed
        assert reasons[missing] == "fail_closed"
        assert two.remaining(1 - missing, [two.here, two.there][1 - missing]) == 3


def test_local_policy_decides_the_failed_part() -> None:
    two = Two("local")
    two.shard(1).away = True
    assert [two.check()[0] for _ in range(4)] == [True, True, True, False]
    two.shard(1).away = False
    assert two.remaining(0, two.here) == 0
    assert two.remaining(1, two.there) == 3


def test_local_denial_gives_back_what_the_store_charged() -> None:
    two = Two("local")
    two.shard(1).away = True
    for _ in range(3):
        two.limiter.check(two.there, Limit(3, 3600, name="limit"))
    assert two.check() == (False, ["ok", "fallback"])
    assert two.remaining(0, two.here) == 3


def test_all_shards_fail() -> None:
    two = Two("closed")
    two.shard(0).away = two.shard(1).away = True
    assert two.check() == (False, ["fail_closed", "fail_closed"])


def test_check_many_over_two_shards() -> None:
    two = Two("open")
    two.shard(1).away = True
    answers = two.limiter.check_many([(two.here, "3/hour"), (two.there, "3/hour")])
    assert [answer.reason for answer in answers] == ["ok", "fail_open"]


def test_failed_reset_is_an_error() -> None:
    two = Two("open")
    two.shard(1).away = True
    two.limiter.reset(two.here, "3/hour")
    with pytest.raises(StoreError, match="away"):
        two.limiter.reset(two.there, "3/hour")


def test_reservation_during_a_failure_gives_nothing_back() -> None:
    two = Two("open")
    two.shard(1).away = True
    with two.limiter.reserve(two.there, Limit(3, 3600, name="limit"), cost=2) as reservation:
        two.shard(1).away = False
        reservation.settle(0)
    assert two.remaining(1, two.there) == 3
    with pytest.raises(RateLimitExceeded):
        two.limiter.reserve(two.there, "0/hour")
