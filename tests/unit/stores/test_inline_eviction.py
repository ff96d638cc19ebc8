"""Inline limits of a service's callers never evict counters of rules and plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from crestgate import Limit, StoreError
from crestgate.core.algorithms import build
from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.limiter.failure_policy import FailurePolicy
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import IdempotencyRecord, LocalStore, Member, Op, Outcome, PartialStoreError, Request
from crestgate.stores.shared import SharedStore
from crestgate.testing import FakeClock

MAX_KEYS = 20
BODY = bytes(16)
RULE = build(Limit.parse("3/day using fixed_window"), "rule|user")


def inline_limit(limit: str) -> Algorithm:
    algorithm = build(Limit.parse(limit), f"inline|{limit}")
    algorithm.inline = True
    return algorithm


INLINE = inline_limit("1/day using fixed_window")
INLINE_LOG = inline_limit("3/day using sliding_window_log")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


@pytest.fixture(params=["memory", "shared"])
def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> LocalStore:
    if request.param == "memory":
        return MemoryStore(MAX_KEYS, clock)
    return SharedStore(str(tmp_path / "counters"), MAX_KEYS, clock=clock)


def take(key: str, algorithm: Algorithm, cost: int = 1) -> Request:
    return Request(Op.TAKE, [Member(key, algorithm, cost)])


def remaining(store: LocalStore, key: str, algorithm: Algorithm) -> int:
    return store.apply([Request(Op.PEEK, [Member(key, algorithm, 0)])])[0][0].decision.remaining


@pytest.mark.parametrize("algorithm", [INLINE, INLINE_LOG])
@pytest.mark.parametrize("mode", ["take", "apply", "chain"])
def test_flood_evicts_no_counter_of_a_rule(
    store: LocalStore, clock: FakeClock, algorithm: Algorithm, mode: str
) -> None:
    for number in range(5):
        store.take(RULE, f"user {number}", 3)
    for number in range(100):
        clock.advance(0.001)
        if mode == "take":
            store.take(algorithm, f"key {number}", 1)
            store.take(algorithm, f"key {number}", 1)  # a use of an existing counter
        elif mode == "apply":
            store.apply([take(f"key {number}", algorithm), take(f"key {number}", algorithm)])
        else:
            store.apply([Request(Op.TAKE, [Member(f"{part} {number}", algorithm, 1) for part in "ab"])])
    assert [store.take(RULE, f"user {number}", 1).allowed for number in range(5)] == [False] * 5


def test_flood_evicts_its_own_least_recently_used(store: LocalStore, clock: FakeClock) -> None:
    for number in range(MAX_KEYS):
        clock.advance(0.001)
        store.take(INLINE, f"key {number}", 1)
    clock.advance(0.001)
    store.take(INLINE, "key 0", 1)
    clock.advance(0.001)
    store.take(INLINE, "another", 1)
    assert [remaining(store, f"key {number}", INLINE) for number in range(3)] == [0, 1, 0]


def test_rules_evict_inline_limits_first(store: LocalStore, clock: FakeClock) -> None:
    store.take(RULE, "first", 1)
    for number in range(MAX_KEYS - 1):
        clock.advance(0.001)
        store.take(INLINE, f"key {number}", 1)
    for number in range(MAX_KEYS - 1):
        clock.advance(0.001)
        store.take(RULE, f"user {number}", 1)
    assert [remaining(store, f"key {number}", INLINE) for number in range(MAX_KEYS - 1)] == [1] * (MAX_KEYS - 1)
    assert remaining(store, "first", RULE) == 2
    clock.advance(0.001)
    store.take(RULE, "one more", 1)
    assert remaining(store, "first", RULE) == 3


def fill(store: LocalStore) -> None:
    for number in range(MAX_KEYS):
        store.take(RULE, f"user {number}", 3)


def test_store_full_of_rules_rejects_inline_limits(store: LocalStore, clock: FakeClock) -> None:
    fill(store)
    message = "no room for another inline limit.*larger max_keys"
    with pytest.raises(StoreError, match=message):
        store.take(INLINE, "key", 1)
    with pytest.raises(StoreError, match=message):
        store.apply([take("key", INLINE)])
    with pytest.raises(StoreError, match=message):
        store.apply([Request(Op.CHARGE, [Member("key", INLINE, 1)])])
    assert remaining(store, "key", INLINE) == 1
    assert all(not store.take(RULE, f"user {number}", 1).allowed for number in range(MAX_KEYS))
    clock.advance(86_400)
    assert store.take(INLINE, "key", 1).allowed, "those have expired"


def test_rejected_request_does_not_fail_its_batch(store: LocalStore) -> None:
    fill(store)
    store.apply([Request(Op.RESET, [Member("user 0", RULE, 0)])])
    with pytest.raises(PartialStoreError) as caught:
        store.apply([take("user 0", RULE), take("key", INLINE), take("user 1", RULE)])
    first, second, third = [reply[0] for reply in caught.value.outcomes]
    assert isinstance(first, Outcome)
    assert first.decision.allowed
    assert isinstance(second, StoreError)
    assert isinstance(third, Outcome)
    assert not third.decision.allowed


def test_rejected_settlement_does_not_fail_its_batch(clock: FakeClock) -> None:
    store = MemoryStore(MAX_KEYS, clock)
    fill(store)
    charges = [Request(Op.CHARGE, [Member(key, INLINE, 1)], IdempotencyRecord(key, BODY, b"")) for key in "ab"]
    known = Request(Op.CHARGE, [Member("user 0", RULE, 1)], IdempotencyRecord("c", BODY, b""))
    for _ in range(2):
        with pytest.raises(PartialStoreError) as caught:
            store.apply([take("user 1", RULE), take("key", INLINE), charges[0], known, charges[1]])
        kinds = [[type(item) for item in reply] for reply in caught.value.outcomes]
        settled = [Outcome] if known.record is not None and known.record.replay is None else []
        assert kinds == [[Outcome], [StoreError], [StoreError], settled, [StoreError]]
    assert known.record is not None
    assert known.record.replay is not None


def test_fallback_without_room_denies(clock: FakeClock) -> None:
    policy = FailurePolicy("local", clock)
    stand_in = policy.local_store()
    stand_in.table.max_keys = MAX_KEYS
    fill(stand_in)
    answered = policy.answer(StoreError("down"), [take("key", INLINE), take("user 0", RULE)])
    assert [reply[0].decision.allowed for reply in answered.replies] == [False, False]


def test_clock_that_steps_back_finds_all_counters(clock: FakeClock) -> None:
    store = MemoryStore(MAX_KEYS, clock)
    short = inline_limit("1/second using fixed_window")
    store.take(short, "key", 1)
    store.take(INLINE, "key", 1)
    clock.advance(5)
    store.take(RULE, "user", 1)
    clock.advance(-5)
    assert remaining(store, "key", short) == 1
    assert remaining(store, "key", INLINE) == 0
    store.close()
    assert store.table.size == 0


def test_take_many_changes_nothing_without_room_for_an_inline_limit(clock: FakeClock) -> None:
    """Midway it would be too late: the caller sends all of them again."""
    store = MemoryStore(MAX_KEYS, clock)
    for number in range(MAX_KEYS):
        store.take(RULE, f"user {number}", 1)
    assert store.take_many([(RULE, "user 0", 1), (INLINE, "stranger", 1)]) is None
    assert remaining(store, "user 0", RULE) == 2
    store = MemoryStore(MAX_KEYS, clock)
    decisions = store.take_many([(RULE, "user 0", 1), (INLINE, "stranger", 1), (INLINE, "stranger", 1)])
    assert decisions is not None
    assert [decision.allowed for decision in decisions] == [True, True, False]
