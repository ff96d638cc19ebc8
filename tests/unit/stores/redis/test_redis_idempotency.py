"""Idempotency records in Redis: documented keys and bytes, and their failures."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from uuid import uuid4

import pytest
import redis

from crestgate import StoreError
from crestgate.stores.idempotency_codec import decode_record, encode_claim, encode_header, encode_record
from crestgate.stores.port import (
    BatchOutcomes,
    IdempotencyRecord,
    Member,
    Op,
    Outcome,
    PartialStoreError,
    Request,
    Store,
)
from crestgate.stores.redis.cluster import ClusterTopology
from crestgate.stores.redis.codec import BatchEncoder
from crestgate.stores.redis.protocol import ServerAddress
from crestgate.testing import AsyncStoreAdapter, FakeClock
from servers.proxy import CuttingProxy
from servers.redis import RedisCluster, RedisServer
from unit.stores.redis.store_requests import ALGORITHMS, limit, peek, store_at, take

NOW = 1_700_000_000
BODY = b"0123456789abcdef"
KEY = "cg:%once:n"
FIVE = limit("5/hour")


def group(record: IdempotencyRecord, *keys: str, algorithm: str = "token_bucket", cost: int = 1) -> list[Request]:
    ours = limit(f"5/hour using {algorithm}")
    return [Request(Op.TAKE, [Member(key, ours, cost)], record) for key in keys or ("key",)]


def new_record(name: str = "n", note: bytes = b"a note") -> IdempotencyRecord:
    return IdempotencyRecord(name, BODY, note)


def stored(client: redis.Redis, key: str = KEY) -> bytes:
    value = client.get(key)
    assert isinstance(value, bytes)
    return value


# -- keys and bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_encoded_record(server: RedisServer, client: redis.Redis, algorithm: str) -> None:
    store = store_at(server.url)
    record = new_record()
    (first,), (second,) = store.apply(group(record, "a", "b", algorithm=algorithm))
    value = stored(client)
    assert value.startswith(struct.pack(">B16sI6s", 1, BODY, 6, b"a note")), "layout, body, note"
    assert len(value) == 27 + 8 + 2 * 37
    replay = decode_record(value)
    assert replay is not None
    decisions = first.decision, second.decision
    assert replay.numbers == [(d.allowed, d.remaining, d.wait_us, d.reset_us) for d in decisions]
    seconds, _ = client.time()
    assert replay.now_us // 1_000_000 in range(seconds - 60, seconds + 1), "the server's time"
    assert 290_000 < client.pttl(KEY) <= 300_000
    store.close()


def test_encoded_claim(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    record = new_record()
    store.apply([Request(Op.CLAIM, [], record)])
    assert stored(client) == encode_claim(record) == b"\x01" + BODY
    assert 290_000 < client.pttl(KEY) <= 300_000
    record.encoded = encode_record(record, NOW, [])
    store.apply([Request(Op.SAVE, [], record)])
    assert stored(client) == record.encoded
    assert 290_000 < client.pttl(KEY) <= 300_000
    store.apply([Request(Op.RELEASE, [], record)])
    assert stored(client) == record.encoded
    store.close()


def test_virtual_time_record_has_its_expiry(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url, FakeClock(NOW))
    store.apply(group(new_record()))
    value = stored(client)
    assert value[-8:] == struct.pack(">q", (NOW + 300) * 1_000_000)
    assert decode_record(value[:-8]) is not None
    assert client.pttl(KEY) > 3_600_000
    store.close()


def test_record_keys() -> None:
    topology = ClusterTopology([ServerAddress("localhost", 7000)])
    one, cluster = BatchEncoder("shop:{1}"), BatchEncoder("cg", topology.tag_of)
    ((_, key, _), _) = one.encode([Request(Op.CLAIM, [], new_record("a:{b}%\ud83d"))], -1)
    assert key == b"shop%3A%7B1%7D:%once:a:{b}%\xed\xa0\xbd"
    ((_, key, _), _) = cluster.encode([Request(Op.CLAIM, [], new_record("user:42"))], -1)
    assert key == b"cg:{390}:%once:user:42"
    assert topology.tag(b"user:42") == 390


def test_counter_keys_never_equal_record_keys(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    store.apply(group(new_record("n:n")))
    for name in ("%once", "once", "%once:", "%once:n", "%", "%25once"):
        for subject in ("n", "n:n", "once:n:n", "%once:n:n", ":n"):
            assert take(store, limit("1/year", name), subject).allowed
    assert decode_record(stored(client, "cg:%once:n:n")) is not None
    store.close()


def test_batch_without_records_is_encoded_without_overhead() -> None:
    """The hot path: not a byte more than the members need."""
    batch = [Request(Op.TAKE, [Member("a", FIVE, 1)]), Request(Op.PEEK, [Member("a", FIVE, 2)])]
    (count, key, body), _ = BatchEncoder("cg").encode(batch, -1)
    assert (count, key) == (1, b"cg:limit:a")
    expected = struct.pack(">qHH", -1, 1, 2) + struct.pack(">BI5q", 1, 1, 3_600_000_000, 5, 5, 720_000_000, 1)
    expected += struct.pack(">BH", 1, 1) + struct.pack(">HHBIqI", 1, 1, 1, 1, 0, 0)
    expected += struct.pack(">BH", 2, 1) + struct.pack(">HHBIqI", 1, 1, 1, 2, 0, 0)
    assert body == expected
    assert BatchEncoder("cg").encode(batch[:1], -1)[0][2] == struct.pack(">qHH", -1, 1, 1) + expected[12:-24]


# -- one run ----------------------------------------------------------------------------------------------------------


def test_thousand_chains_are_one_script_call(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    many = [limit("5/hour", f"limit-{i}") for i in range(3)]
    record = new_record()
    batch = [Request(Op.TAKE, [Member(f"user:{i}", ours, 1) for ours in many], record) for i in range(1000)]
    client.config_resetstat()
    replies = store.apply(batch)
    assert [len(reply) for reply in replies] == [3] * 1000
    repeat = new_record()
    assert store.apply([Request(request.op, request.members, repeat) for request in batch]) == [[]] * 1000
    assert repeat.replay is not None
    assert len(repeat.replay.numbers) == 3000
    stats = client.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 2, "one to decide, one to replay"
    assert stats["cmdstat_set"]["calls"] == 3001
    assert {peek(store, many[2], f"user:{i}").remaining for i in range(0, 1000, 99)} == {4}
    store.close()


def test_too_large_group_is_rejected(server: RedisServer, client: redis.Redis) -> None:
    for store in both_sides(server.url):
        members = [Member(f"user:{i}", FIVE, 1) for i in range(3300)]
        record = new_record()
        with pytest.raises(ValueError, match="more than 262,144: send fewer requests at a time"):
            store.apply([Request(Op.TAKE, members, record) for _ in range(21)])
        assert client.keys() == []
        store.close()


def both_sides(url: str) -> Sequence[Store]:
    return store_at(url, prefix=uuid4()), AsyncStoreAdapter(store_at(url, prefix=uuid4()))


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["one", "cluster"])
def test_flushed_script_is_sent_again(topology: str, server: RedisServer, redis_cluster: RedisCluster) -> None:
    url, servers = (server.url, [server]) if topology == "one" else (redis_cluster.url, redis_cluster.masters)
    for store in both_sides(url):

        def decided(name: str, store: Store = store) -> IdempotencyRecord:
            for forgetful in servers:
                forgetful.cli("SCRIPT", "FLUSH")
            record = new_record(name)
            store.apply(group(record, "a", "b", "c", "d"))
            return record

        record = [decided(name).replay for name in ("m", "m", "n", "n")]
        assert [replay is not None for replay in record] == [False, True, False, True]
        assert record[3] is not None
        assert [remaining for _, remaining, _, _ in record[3].numbers] == [3] * 4
        store.close()


@pytest.mark.parametrize("side", ["sync", "async"])
def test_lost_reply_is_replayed(server: RedisServer, client: redis.Redis, side: str) -> None:
    with CuttingProxy(server.port) as proxy:
        url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
        hurried = store_at(url, timeout_ms=300)
        store = hurried if side == "sync" else AsyncStoreAdapter(hurried)
        take(store, FIVE, "another")
        proxy.hang(replies_only=True)
        with pytest.raises(StoreError, match="did not answer"):
            store.apply(group(new_record()))
        proxy.pass_all()
        repeat = new_record()
        assert store.apply(group(repeat)) == [[]]
        assert repeat.replay is not None
        assert [(allowed, remaining) for allowed, remaining, _, _ in repeat.replay.numbers] == [(True, 4)]
        assert peek(store, FIVE).remaining == 4, "counted exactly once"
        store.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_out_of_memory_changes_nothing(server: RedisServer, client: redis.Redis, algorithm: str) -> None:
    store = store_at(server.url, FakeClock(NOW))
    store.apply(group(new_record("old"), "a", algorithm=algorithm))
    before = {key: client.dump(key) for key in client.keys()}
    client.config_set("maxmemory", 1)
    try:
        for batch in (
            group(new_record(), "a", "b", algorithm=algorithm),
            group(new_record(), "a", algorithm=algorithm, cost=6),  # a denial is stored too
            [Request(Op.CLAIM, [], new_record())],
        ):
            with pytest.raises(StoreError, match="OOM"):
                store.apply(batch)
        assert {key: client.dump(key) for key in client.keys()} == before
        repeat = new_record("old")
        assert store.apply(group(repeat, "a", algorithm=algorithm)) == [[]]
        assert repeat.replay is not None, "a peek needs no memory"
    finally:
        client.config_set("maxmemory", 0)
    again = new_record()
    replies = store.apply(group(again, "a", "b", algorithm=algorithm))
    assert again.replay is None
    assert [reply[0].decision.remaining for reply in replies] == [3, 4]
    store.close()


FOREIGN: dict[str, tuple[Callable[[redis.Redis], object], str]] = {
    "a text": (lambda client: client.set(KEY, "x"), "cannot be read"),
    "a later version": (lambda client: client.set(KEY, b"\x02" + b"x" * 64), "layout version 2, this version reads 1"),
    "a torn record": (lambda client: client.set(KEY, encode_header(new_record()) + b"x" * 44), "cannot be read"),
    "a list": (lambda client: client.rpush(KEY, "x"), "cannot be read"),
}


@pytest.mark.parametrize("side", ["sync", "async"])
@pytest.mark.parametrize("foreign", FOREIGN)
def test_foreign_value_is_an_error_and_stays_unchanged(
    server: RedisServer, client: redis.Redis, foreign: str, side: str
) -> None:
    write, message = FOREIGN[foreign]
    write(client)
    before = client.dump(KEY)
    redis_store = store_at(server.url)
    store = redis_store if side == "sync" else AsyncStoreAdapter(redis_store)
    record = new_record()
    batch = [Request(Op.TAKE, [Member("other", FIVE, 1)]), *group(record, "a", "b"), Request(Op.CLAIM, [], record)]
    with pytest.raises(PartialStoreError, match=f"the idempotency record 'n': .*{message}") as raised:
        store.apply(batch)
    (other,), *refused = raised.value.outcomes
    assert isinstance(other, Outcome), "the rest of the batch is decided"
    assert [len(reply) for reply in refused] == [1, 1, 1]
    assert all(isinstance(error, StoreError) for (error,) in refused)
    assert (record.replay, record.pending) == (None, False)
    store.apply([Request(Op.RELEASE, [], record)])
    assert client.dump(KEY) == before
    assert [peek(store, FIVE, key).remaining for key in ("a", "b")] == [5, 5]
    store.close()


def test_failed_decision_is_not_stored(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    client.set("cg:limit:b", "x" * 100)
    with pytest.raises(PartialStoreError, match="layout version 120"):
        store.apply(group(new_record(), "a", "b"))
    assert client.exists(KEY) == 0
    client.delete("cg:limit:b")
    record = new_record()
    replies: BatchOutcomes = store.apply(group(record, "a", "b"))
    assert record.replay is None
    assert [reply[0].decision.remaining for reply in replies] == [3, 4]
    store.close()


def test_error_redacts_api_keys(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    client.set("cg:%once:apikey:hunter2", "x")
    with pytest.raises(StoreError, match=r"the idempotency record 'apikey:\*\*\*'"):
        store.apply(group(new_record("apikey:hunter2")))
    store.close()


def test_claim_with_another_fingerprint_is_not_released(server: RedisServer, client: redis.Redis) -> None:
    """Our claim was dropped, and another caller has claimed the name since."""
    store = store_at(server.url)
    store.apply([Request(Op.CLAIM, [], new_record())])
    store.apply([Request(Op.RELEASE, [], IdempotencyRecord("n", b"fedcba9876543210", b""))])
    assert stored(client) == encode_claim(new_record())
    store.apply([Request(Op.RELEASE, [], new_record())])
    assert client.exists(KEY) == 0
    store.close()
