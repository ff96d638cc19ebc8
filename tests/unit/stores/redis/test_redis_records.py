"""What is decided once, in Redis: its key and its bytes as documented, and all that may go wrong with it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from uuid import uuid4

import pytest
import redis

from headgate import StoreError
from headgate.stores.keeping import claim_bytes, head_bytes, pack_kept, read_kept
from headgate.stores.port import Member, Once, Op, Outcome, PartlyAnswered, Replies, Request, Store
from headgate.stores.redis.cluster import ClusterTopology
from headgate.stores.redis.talk import Address
from headgate.stores.redis.wire import Wire
from headgate.testing import FakeClock, OnLoop
from servers.proxy import CuttingProxy
from servers.redis import RedisCluster, RedisServer
from unit.stores.redis.requests import ALGORITHMS, limit, peek, store_at, take

NOW = 1_700_000_000
BODY = b"0123456789abcdef"
KEY = "hg:%once:n"
FIVE = limit("5/hour")


def group(once: Once, *keys: str, algorithm: str = "token_bucket", cost: int = 1) -> list[Request]:
    ours = limit(f"5/hour using {algorithm}")
    return [Request(Op.TAKE, [Member(key, ours, cost)], once) for key in keys or ("key",)]


def once(name: str = "n", note: bytes = b"a note") -> Once:
    return Once(name, BODY, note)


def stored(client: redis.Redis, key: str = KEY) -> bytes:
    value = client.get(key)
    assert isinstance(value, bytes)
    return value


# -- keys and bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bytes(server: RedisServer, client: redis.Redis, algorithm: str) -> None:
    store = store_at(server.url)
    asked = once()
    (first,), (second,) = store.apply(group(asked, "a", "b", algorithm=algorithm))
    value = stored(client)
    assert value.startswith(struct.pack(">B16sI6s", 1, BODY, 6, b"a note")), "layout, body, note"
    assert len(value) == 27 + 8 + 2 * 37
    kept = read_kept(value)
    assert kept is not None
    decisions = first.decision, second.decision
    assert kept.numbers == [(d._allowed, d._remaining, d._wait, d._reset) for d in decisions]
    seconds, _ = client.time()
    assert kept.now_us // 1_000_000 in range(seconds - 60, seconds + 1), "the server's time"
    assert 290_000 < client.pttl(KEY) <= 300_000
    store.close()


def test_bytes_of_a_claim(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    asked = once()
    store.apply([Request(Op.CLAIM, [], asked)])
    assert stored(client) == claim_bytes(asked) == b"\x01" + BODY
    assert 290_000 < client.pttl(KEY) <= 300_000
    asked.packed = pack_kept(asked, NOW, [])
    store.apply([Request(Op.KEEP, [], asked)])
    assert stored(client) == asked.packed
    assert 290_000 < client.pttl(KEY) <= 300_000
    store.apply([Request(Op.RELEASE, [], asked)])
    assert stored(client) == asked.packed
    store.close()


def test_in_virtual_time_a_record_says_when_it_ends(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url, FakeClock(NOW))
    store.apply(group(once()))
    value = stored(client)
    assert value[-8:] == struct.pack(">q", (NOW + 300) * 1_000_000)
    assert read_kept(value[:-8]) is not None
    assert client.pttl(KEY) > 3_600_000
    store.close()


def test_keys() -> None:
    topology = ClusterTopology([Address("localhost", 7000)])
    one, cluster = Wire("shop:{1}"), Wire("hg", topology.tag_of)
    (key,), _ = one.encode([Request(Op.CLAIM, [], once("a:{b}%\ud83d"))], -1)
    assert key == b"shop%3A%7B1%7D:%once:a:{b}%\xed\xa0\xbd"
    (key,), _ = cluster.encode([Request(Op.CLAIM, [], once("user:42"))], -1)
    assert key == b"hg:{390}:%once:user:42"
    assert topology.tag(b"user:42") == 390


def test_no_counter_has_the_key_of_a_record(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    store.apply(group(once("n:n")))
    for name in ("%once", "once", "%once:", "%once:n", "%", "%25once"):
        for subject in ("n", "n:n", "once:n:n", "%once:n:n", ":n"):
            assert take(store, limit("1/year", name), subject).allowed
    assert read_kept(stored(client, "hg:%once:n:n")) is not None
    store.close()


def test_what_is_not_decided_once_is_said_as_ever() -> None:
    """The hot path: not a byte more than the members need."""
    batch = [Request(Op.TAKE, [Member("a", FIVE, 1)]), Request(Op.PEEK, [Member("a", FIVE, 2)])]
    keys, body = Wire("hg").encode(batch, -1)
    assert keys == [b"hg:limit:a"]
    said = struct.pack(">qHH", -1, 1, 2) + struct.pack(">BI5q", 1, 1, 3_600_000_000, 5, 5, 720_000_000, 1)
    said += struct.pack(">BH", 1, 1) + struct.pack(">HHBIqI", 1, 1, 1, 1, 0, 0)
    said += struct.pack(">BH", 2, 1) + struct.pack(">HHBIqI", 1, 1, 1, 2, 0, 0)
    assert body == said
    assert Wire("hg").encode(batch[:1], -1)[1] == struct.pack(">qHH", -1, 1, 1) + said[12:-24]


# -- one run ----------------------------------------------------------------------------------------------------------


def test_a_thousand_chains_are_one_run(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    many = [limit("5/hour", f"limit-{i}") for i in range(3)]
    asked = once()
    batch = [Request(Op.TAKE, [Member(f"user:{i}", ours, 1) for ours in many], asked) for i in range(1000)]
    client.config_resetstat()
    replies = store.apply(batch)
    assert [len(reply) for reply in replies] == [3] * 1000
    repeat = once()
    assert store.apply([Request(request.op, request.members, repeat) for request in batch]) == [[]] * 1000
    assert repeat.kept is not None
    assert len(repeat.kept.numbers) == 3000
    stats = client.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 2, "one to decide, one to find what was decided"
    assert stats["cmdstat_set"]["calls"] == 3001
    assert {peek(store, many[2], f"user:{i}").remaining for i in range(0, 1000, 99)} == {4}
    store.close()


def test_a_group_that_is_too_large_is_refused(server: RedisServer, client: redis.Redis) -> None:
    for store in both_sides(server.url):
        members = [Member(f"user:{i}", FIVE, 1) for i in range(3300)]
        asked = once()
        with pytest.raises(ValueError, match="may have 262,144: ask for less at a time"):
            store.apply([Request(Op.TAKE, members, asked) for _ in range(21)])
        assert client.keys() == []
        store.close()


def both_sides(url: str) -> Sequence[Store]:
    return store_at(url, prefix=uuid4()), OnLoop(store_at(url, prefix=uuid4()))


# -- what may go wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["one", "cluster"])
def test_a_script_that_is_gone_is_brought_again(place: str, server: RedisServer, redis_cluster: RedisCluster) -> None:
    url, servers = (server.url, [server]) if place == "one" else (redis_cluster.url, redis_cluster.masters)
    for store in both_sides(url):

        def decided(name: str, store: Store = store) -> Once:
            for forgetful in servers:
                forgetful.cli("SCRIPT", "FLUSH")
            asked = once(name)
            store.apply(group(asked, "a", "b", "c", "d"))
            return asked

        asked = [decided(name).kept for name in ("m", "m", "n", "n")]
        assert [kept is not None for kept in asked] == [False, True, False, True]
        assert asked[3] is not None
        assert [remaining for _, remaining, _, _ in asked[3].numbers] == [3] * 4
        store.close()


@pytest.mark.parametrize("side", ["sync", "async"])
def test_an_answer_that_is_lost_is_there_for_a_repeat(server: RedisServer, client: redis.Redis, side: str) -> None:
    with CuttingProxy(server.port) as proxy:
        url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
        hurried = store_at(url, timeout_ms=300)
        store = hurried if side == "sync" else OnLoop(hurried)
        take(store, FIVE, "another")
        proxy.hang(replies_only=True)
        with pytest.raises(StoreError, match="did not answer"):
            store.apply(group(once()))
        proxy.pass_all()
        repeat = once()
        assert store.apply(group(repeat)) == [[]]
        assert repeat.kept is not None
        assert [(allowed, remaining) for allowed, remaining, _, _ in repeat.kept.numbers] == [(True, 4)]
        assert peek(store, FIVE).remaining == 4, "counted, and once"
        store.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_memory_is_an_error_and_changes_nothing(server: RedisServer, client: redis.Redis, algorithm: str) -> None:
    store = store_at(server.url, FakeClock(NOW))
    store.apply(group(once("old"), "a", algorithm=algorithm))
    before = {key: client.dump(key) for key in client.keys()}
    client.config_set("maxmemory", 1)
    try:
        for batch in (
            group(once(), "a", "b", algorithm=algorithm),
            group(once(), "a", algorithm=algorithm, cost=6),  # a denial is kept too
            [Request(Op.CLAIM, [], once())],
        ):
            with pytest.raises(StoreError, match="OOM"):
                store.apply(batch)
        assert {key: client.dump(key) for key in client.keys()} == before
        repeat = once("old")
        assert store.apply(group(repeat, "a", algorithm=algorithm)) == [[]]
        assert repeat.kept is not None, "looking needs no memory"
    finally:
        client.config_set("maxmemory", 0)
    again = once()
    replies = store.apply(group(again, "a", "b", algorithm=algorithm))
    assert again.kept is None
    assert [reply[0].decision.remaining for reply in replies] == [3, 4]
    store.close()


FOREIGN: dict[str, tuple[Callable[[redis.Redis], object], str]] = {
    "a text": (lambda client: client.set(KEY, "x"), "cannot be read"),
    "a later version": (lambda client: client.set(KEY, b"\x02" + b"x" * 64), "layout version 2, and 1 is read here"),
    "a torn record": (lambda client: client.set(KEY, head_bytes(once()) + b"x" * 44), "cannot be read"),
    "a list": (lambda client: client.rpush(KEY, "x"), "cannot be read"),
}


@pytest.mark.parametrize("side", ["sync", "async"])
@pytest.mark.parametrize("foreign", FOREIGN)
def test_what_is_no_record_is_refused_and_left_alone(
    server: RedisServer, client: redis.Redis, foreign: str, side: str
) -> None:
    write, message = FOREIGN[foreign]
    write(client)
    before = client.dump(KEY)
    redis_store = store_at(server.url)
    store = redis_store if side == "sync" else OnLoop(redis_store)
    asked = once()
    batch = [Request(Op.TAKE, [Member("other", FIVE, 1)]), *group(asked, "a", "b"), Request(Op.CLAIM, [], asked)]
    with pytest.raises(PartlyAnswered, match=f"the idempotency record 'n': .*{message}") as raised:
        store.apply(batch)
    (other,), *refused = raised.value.replies
    assert isinstance(other, Outcome), "the rest of the batch is decided"
    assert [len(reply) for reply in refused] == [1, 1, 1]
    assert all(isinstance(error, StoreError) for (error,) in refused)
    assert (asked.kept, asked.pending) == (None, False)
    store.apply([Request(Op.RELEASE, [], asked)])
    assert client.dump(KEY) == before
    assert [peek(store, FIVE, key).remaining for key in ("a", "b")] == [5, 5]
    store.close()


def test_what_cannot_be_decided_is_not_kept(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    client.set("hg:limit:b", "x" * 100)
    with pytest.raises(PartlyAnswered, match="layout version 120"):
        store.apply(group(once(), "a", "b"))
    assert client.exists(KEY) == 0
    client.delete("hg:limit:b")
    asked = once()
    replies: Replies = store.apply(group(asked, "a", "b"))
    assert asked.kept is None
    assert [reply[0].decision.remaining for reply in replies] == [3, 4]
    store.close()


def test_an_api_key_is_not_shown(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url)
    client.set("hg:%once:apikey:hunter2", "x")
    with pytest.raises(StoreError, match=r"the idempotency record 'apikey:\*\*\*'"):
        store.apply(group(once("apikey:hunter2")))
    store.close()


def test_a_claim_of_another_body_is_not_released(server: RedisServer, client: redis.Redis) -> None:
    """Ours was forgotten, and somebody else has claimed the name since."""
    store = store_at(server.url)
    store.apply([Request(Op.CLAIM, [], once())])
    store.apply([Request(Op.RELEASE, [], Once("n", b"fedcba9876543210", b""))])
    assert stored(client) == claim_bytes(once())
    store.apply([Request(Op.RELEASE, [], once())])
    assert client.exists(KEY) == 0
    store.close()
