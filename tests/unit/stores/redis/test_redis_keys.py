"""Redis keys: unique per counter, and with a hash tag in a cluster.

The grammar is `prefix:name:subject`, in a cluster `prefix:{tag}:name:subject`; in prefix and name `%`, `:`, `{` and
`}` are written as %25, %3A, %7B and %7D, so that only the tag is in braces.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from uuid import uuid4

import pytest
import redis
from redis.crc import key_slot

from crestgate.stores.port import Member, Op, Request, Store
from crestgate.stores.redis.cluster import ClusterTopology
from crestgate.stores.redis.codec import BatchEncoder
from crestgate.stores.redis.protocol import ServerAddress
from crestgate.testing import AsyncStoreAdapter, FakeClock
from servers.process import GivenServer
from servers.redis import RedisCluster, RedisServer
from unit.stores.redis.store_requests import ALGORITHMS, apply, limit, peek, store_at, take

NAMES = [
    *("a", "A", "a:b", "b", "a:", ":", "a%3A", "a%", "{a}", "{", "}", "{}", "a{b}c", "a\n", "a\0", "\u00e9", "e\u0301"),
    "a ",
]
SUBJECTS = [
    *("a", "A", "b:c", "c", "a:b", "{a}", "{b}", "{}", "{", "}", "}{", "{a}{b}", "a{b}c", "%", "%7Ba%7D", "%7B", "%3A"),
    *("a b", "a ", " a", "a\t", "a\n", "a\r\n", "a\0", "\0a", "\0", "a\x1f", "\x7f", "::", "*"),
    *("\u00e9", "e\u0301", "E\u0301", "\u00df", "\U0001f6a6", "\U0001f6a6{\U0001f6a6}", "\ud83d\udea6", "\ud83d"),
    *("k" * 1024, "{" * 1024, "\U0001f6a6" * 256),
]  # fmt: skip


@pytest.fixture(params=["one, sync", "one, async", "cluster, sync", "cluster, async"])
def make(
    request: pytest.FixtureRequest, redis_server: RedisServer | GivenServer, redis_cluster: RedisCluster
) -> Callable[[str], Store]:
    """Opens stores with a given prefix."""
    topology, side = request.param.split(", ")
    url = redis_server.url if topology == "one" else redis_cluster.url

    def opened(prefix: str) -> Store:
        store = store_at(url, FakeClock(1_700_000_000), prefix=prefix)
        return store if side == "sync" else AsyncStoreAdapter(store)

    return opened


def cluster_encoder(prefix: str) -> tuple[BatchEncoder, ClusterTopology]:
    topology = ClusterTopology([ServerAddress("localhost", 7000)])
    return BatchEncoder(prefix, topology.tag_of), topology


def test_key_grammar() -> None:
    encoder = BatchEncoder("shop:{1}")
    assert (
        encoder.key(encoder.encode_limit(limit("5/hour", "50%:{x}"))[1], "user:{4}%")
        == b"shop%3A%7B1%7D:50%25%3A%7Bx%7D:user:{4}%"
    )
    encoder, topology = cluster_encoder("cg")
    assert encoder.key(encoder.encode_limit(limit("5/hour", "gold"))[1], "user:42") == b"cg:{390}:gold:user:42"
    assert topology.tag(b"user:42") == 390


@pytest.mark.parametrize("cluster", [False, True])
def test_keys_are_unique(cluster: bool) -> None:
    keys = set()
    for prefix in NAMES:
        encoder = cluster_encoder(prefix)[0] if cluster else BatchEncoder(prefix)
        for name, subject in itertools.product(NAMES, SUBJECTS):
            keys.add(encoder.key(encoder.encode_limit(limit("5/hour", name))[1], subject))
    assert len(keys) == len(NAMES) ** 2 * len(SUBJECTS)


def test_slot_of_a_key_is_the_slot_of_its_tag() -> None:
    encoder, topology = cluster_encoder("{a}:{")
    for name, subject in itertools.product(NAMES, SUBJECTS):
        key = encoder.key(encoder.encode_limit(limit("5/hour", name))[1], subject)
        tag = topology.tag(subject.encode("utf-8", "surrogatepass"))
        assert topology.slots[tag] == key_slot(key)


def test_subjects_prefixes_and_names_have_separate_counters(make: Callable[[str], Store]) -> None:
    run = str(uuid4())
    for prefix in (run, f"{run}:", f"{run}%3A", f"{run}%7Ba%7D", run.upper()):
        store = make(prefix.replace("%", "%25"))
        batch = [
            Request(Op.TAKE, [Member(subject, limit("1/year", name), 1)])
            for name in ("a", "a:b", "{a}")
            for subject in SUBJECTS
        ]
        assert [reply[0].decision.allowed for reply in store.apply(batch)] == [True] * len(batch)
        assert [reply[0].decision.allowed for reply in store.apply(batch)] == [False] * len(batch)
        assert all(not take(store, limit("1/year", "a"), subject).allowed for subject in SUBJECTS[::7])
        store.close()


def test_prefix_with_a_brace_in_the_url(redis_server: RedisServer | GivenServer) -> None:
    run = str(uuid4())
    store = store_at(redis_server.url, prefix=f"{run}%7B%25%3A")
    assert take(store, limit("1/year"), "{x}").allowed
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.keys(f"{run}*") == [f"{run}%7B%25%3A:limit:{{x}}".encode()]
    store.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_chain_over_slots_is_atomic(make: Callable[[str], Store], algorithm: str) -> None:
    """Twelve subjects with twelve tags on all masters; the narrow limit is first, last and in the middle."""
    for narrow in (0, 5, 11):
        store = make(str(uuid4()))
        wide, tight = limit(f"5/year using {algorithm}", "wide"), limit(f"2/year using {algorithm}", "tight")
        members = [Member(f"user:{i}", tight if i == narrow else wide, 1) for i in range(12)]
        verdicts = [[outcome.decision.allowed for outcome in apply(store, Op.TAKE, *members)] for _ in range(4)]
        assert verdicts[:2] == [[True] * 12] * 2
        assert verdicts[2:] == [[i != narrow for i in range(12)]] * 2
        left = [peek(store, member.algorithm, member.key).remaining for member in members]
        assert left == [0 if i == narrow else 3 for i in range(12)], "the charges of a denied chain are given back"
        store.close()


def test_non_binding_member_in_another_slot_neither_denies_nor_is_charged_by_a_denial(
    make: Callable[[str], Store],
) -> None:
    store = make(str(uuid4()))
    enough, shadow, none = limit("9/year", "enough"), limit("1/year", "shadow"), limit("2/year", "none")
    members = [Member("user:1", shadow, 1, binds=False), Member("user:2", enough, 1), Member("user:3", none, 1)]
    verdicts = [[outcome.decision.allowed for outcome in apply(store, Op.TAKE, *members)] for _ in range(3)]
    assert verdicts == [[True, True, True], [False, True, True], [False, True, False]]
    assert [peek(store, m.algorithm, m.key).remaining for m in members] == [0, 7, 0]
    store.close()


def test_chains_over_slots_in_one_batch_never_over_admit(make: Callable[[str], Store]) -> None:
    store = make(str(uuid4()))
    algorithm = limit("50/year")
    batch = [
        Request(Op.TAKE, [Member(f"user:{(i + step) % 7}", algorithm, 1) for step in range(3)]) for i in range(200)
    ]
    replies = store.apply(batch)
    admitted = [all(outcome.decision.allowed for outcome in reply) for reply in replies]
    charged = [0] * 7
    for request, passed in zip(batch, admitted, strict=True):
        for member in request.members:
            charged[int(member.key[5:])] += passed
    assert max(charged) <= 50
    assert [50 - peek(store, algorithm, f"user:{i}").remaining for i in range(7)] == charged
    store.close()
