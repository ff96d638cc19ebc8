"""Counters in Redis: documented bytes, foreign values, and expiry."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import redis

from crestgate import StoreError
from crestgate.stores.port import Member, Op, Outcome, PartialStoreError, Request
from crestgate.stores.redis import RedisStore
from crestgate.testing import AsyncStoreAdapter, FakeClock
from servers.machine import until
from servers.redis import RedisServer
from unit.stores.redis.store_requests import ALGORITHMS, apply, limit, peek, store_at, take

NOW = 1_700_000_000
TICK = NOW * 1_000_000
KEY = "cg:limit:key"

Write = Callable[[redis.Redis], object]


def stored(client: redis.Redis, key: str = KEY) -> bytes:
    value = client.get(key)
    assert isinstance(value, bytes)
    return value


@pytest.mark.parametrize(
    ("kind", "algorithm", "numbers"),
    [
        (1, "token_bucket", (10, 60_000_000, TICK, 3 * 6_000_000, 0)),
        (2, "leaky_bucket", (10, 60_000_000, TICK, 3 * 6_000_000, 0)),
        (3, "fixed_window", (0, 60_000_000, TICK, 3, 0)),
        (5, "sliding_window_counter", (0, 60_000_000, TICK, 3, 0)),
        (6, "gcra", (10, 60_000_000, TICK, 3 * 6_000_000, 0)),
    ],
)
def test_encoded_counter(
    server: RedisServer, client: redis.Redis, kind: int, algorithm: str, numbers: tuple[int, ...]
) -> None:
    store = store_at(server.url, FakeClock(NOW))
    take(store, limit(f"10/minute using {algorithm}"), cost=3)
    assert stored(client) == struct.pack(">BBI5q", 1, kind, 1, *numbers)
    store.close()


def test_encoded_log(server: RedisServer, client: redis.Redis) -> None:
    clock = FakeClock(NOW)
    store = store_at(server.url, clock)
    algorithm = limit("10/minute using sliding_window_log")
    take(store, algorithm, cost=3)
    clock.advance(30)
    take(store, algorithm, cost=4)
    entries = struct.pack(">4q", TICK, 3, TICK + 30_000_000, 4)
    state = struct.pack(">BBI5q", 1, 4, 1, 0, 60_000_000, TICK + 30_000_000, 7, TICK + 30_000_000)
    assert stored(client) == state + struct.pack(">II", 0, 2) + entries
    clock.advance(30)  # the first entry has expired, but its bytes stay for a while
    take(store, algorithm, cost=1)
    state = struct.pack(">BBI5q", 1, 4, 1, 0, 60_000_000, TICK + 60_000_000, 5, TICK + 60_000_000)
    entries += struct.pack(">2q", TICK + 60_000_000, 1)
    assert stored(client) == state + struct.pack(">II", 1, 3) + entries
    store.close()


def test_log_drops_expired_entries(server: RedisServer, client: redis.Redis) -> None:
    clock = FakeClock(NOW)
    store = store_at(server.url, clock)
    algorithm = limit("50/minute using sliding_window_log")
    for _ in range(1000):
        clock.advance(1.3)
        take(store, algorithm)
    assert len(stored(client)) < 54 + 16 * 3 * 60
    store.close()


def test_error_redacts_api_keys(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    ours = limit("10/minute")
    store.apply([Request(Op.TAKE, [Member("apikey:hunter2", ours, 1)])])
    (key,) = client.keys()
    client.set(key, 5)
    with pytest.raises(StoreError, match=r"the Redis key of 'apikey:\*\*\*' under") as raised:
        store.apply([Request(Op.TAKE, [Member("apikey:hunter2", ours, 1)])])
    assert "hunter2" not in str(raised.value)
    store.close()


FOREIGN: dict[str, tuple[Write, str]] = {
    "a number": (lambda client: client.set(KEY, 5), "holds something that is not a counter"),
    "a long text": (lambda client: client.set(KEY, "x" * 100), "layout version 120"),
    "a later version": (lambda client: client.setrange(KEY, 0, b"\x02"), "layout version 2, and version 1 is read"),
    "an unknown algorithm": (lambda client: client.setrange(KEY, 1, b"\x63"), "not a counter"),
    "a list": (lambda client: (client.delete(KEY), client.rpush(KEY, "x")), "not a counter"),
}


@pytest.mark.parametrize("side", ["sync", "async"])
@pytest.mark.parametrize("algorithm", ["token_bucket", "sliding_window_log"])
@pytest.mark.parametrize("foreign", FOREIGN)
def test_foreign_value_is_an_error_and_stays_unchanged(
    server: RedisServer, client: redis.Redis, algorithm: str, foreign: str, side: str
) -> None:
    redis_store = store_at(server.url)
    store = redis_store if side == "sync" else AsyncStoreAdapter(redis_store)
    ours = limit(f"10/minute using {algorithm}")
    take(store, ours)
    write, message = FOREIGN[foreign]
    write(client)
    before = client.dump(KEY)
    for op in (Op.TAKE, Op.PEEK, Op.CHARGE):
        with pytest.raises(PartialStoreError, match=message) as raised:
            store.apply([Request(Op.TAKE, [Member("other", ours, 1)]), Request(op, [Member("key", ours, 1)])])
        other, (refused,) = raised.value.outcomes
        assert isinstance(other[0], Outcome), "the rest of the batch is decided"
        assert isinstance(refused, StoreError)
        assert "'key'" in str(refused)
    with pytest.raises(PartialStoreError, match=message):
        store.apply([Request(Op.TAKE, [Member("key", ours, 1), Member("another", ours, 1)])])
    assert client.dump(KEY) == before
    assert peek(store, ours, "another").remaining == 10, "a chain with a counter that cannot be read charges nothing"
    apply(store, Op.RESET, Member("key", ours, 0))
    assert take(store, ours).remaining == 9, "a reset deletes any value"
    store.close()


# -- expiry -----------------------------------------------------------------------------------------------------------


def assert_ttl_covers_the_counter(client: redis.Redis, store: RedisStore, limits: str) -> None:
    """The key expires one to two seconds after the counter has drained."""
    left_ms = peek(store, limit(limits)).reset_after * 1000
    assert left_ms + 500 <= client.pttl(KEY) <= left_ms + 2000


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("period", ["ms", "10 seconds", "day", "100 years"])
def test_every_write_sets_a_ttl(server: RedisServer, client: redis.Redis, algorithm: str, period: str) -> None:
    store = store_at(server.url)
    limits = f"10/{period} using {algorithm}"
    ours = limit(limits)
    taken = apply(store, Op.TAKE, Member("key", ours, 5))[0]
    assert_ttl_covers_the_counter(client, store, limits)
    take(store, ours, cost=3)
    assert_ttl_covers_the_counter(client, store, limits)
    apply(store, Op.GIVE_BACK, Member("key", ours, 5, True, taken.tick, 2))
    assert_ttl_covers_the_counter(client, store, limits)
    apply(store, Op.CHARGE, Member("key", ours, 1000))  # a debt lasts longer than a full counter
    assert_ttl_covers_the_counter(client, store, limits)
    take(store, ours, cost=10)
    assert_ttl_covers_the_counter(client, store, limits)
    take(store, limit(f"20/{period} using {algorithm}"))  # under another limit
    assert client.pttl(KEY) > 0
    apply(store, Op.RESET, Member("key", ours, 0))
    assert client.keys() == []
    store.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_maximum_debt_has_a_ttl_within_three_centuries(
    server: RedisServer, client: redis.Redis, algorithm: str
) -> None:
    store = store_at(server.url)
    ours = limit(f"1/30 days using {algorithm}")
    for _ in range(5):
        apply(store, Op.CHARGE, Member("key", ours, 2**31 - 1))
    assert 0 < client.pttl(KEY) < 300 * 365 * 86_400_000
    store.close()


def test_denials_and_peeks_write_nothing(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    for algorithm in ALGORITHMS:
        ours = limit(f"1/hour using {algorithm}", algorithm)
        peek(store, ours)
        take(store, ours, cost=2)
        take(store, ours, cost=0)
        assert client.keys() == [], algorithm
    store.close()


def test_counters_expire(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    for algorithm in ALGORITHMS:
        take(store, limit(f"1000/ms using {algorithm}", algorithm), cost=1000)
    assert client.dbsize() == 6
    until("all have gone", lambda: client.dbsize() == 0, patience=5)
    store.close()
