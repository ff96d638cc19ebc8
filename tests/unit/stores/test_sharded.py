"""Sharded stores: distribution, rebalancing, and isolation of a store that hangs."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from crestgate import AsyncLimiter, ConfigError, Limiter, StoreClosedError, StoreError
from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.runtime.url_options import Options
from crestgate.stores.factory import open_store
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import BatchOutcomes, LocalStore, Member, Op, Request, Store
from crestgate.stores.remote_store import RemoteStore
from crestgate.stores.sharded import ShardedStore
from crestgate.testing import FakeClock, StoreConformance, read_vectors, vector_mismatches

SUBJECTS = [f"user:{number}" for number in range(20_000)]
VECTORS = Path(__file__).parents[2] / "vectors" / "vectors.jsonl"


def sharded(*addresses: str) -> ShardedStore:
    return ShardedStore({address: MemoryStore() for address in addresses})


def owners(*addresses: str) -> dict[str, str]:
    store = sharded(*addresses)
    return {subject: sorted(addresses)[store.node_of(subject)] for subject in SUBJECTS}


class TestSharded(StoreConformance):
    def make_store(self, clock: FakeClock) -> Store:
        return open_store(["memory://"] * 3, clock)


def test_vectors() -> None:
    def make_store(clock: FakeClock) -> Store:
        return open_store(["memory://"] * 3, clock)

    with VECTORS.open() as lines:
        sequences = list(itertools.islice(read_vectors(lines), 0, None, 5))
    assert [wrong for sequence in sequences for wrong in vector_mismatches(sequence, make_store)] == []


@pytest.mark.parametrize("stores", [2, 3, 5, 10])
def test_shares_are_even_and_removing_a_store_moves_only_its_subjects(stores: int) -> None:
    addresses = [f"redis://node-{number}:6379/0" for number in range(stores)]
    before = owners(*addresses)
    for share in Counter(before.values()).values():
        assert 0.8 / stores < share / len(SUBJECTS) < 1.25 / stores
    after = owners(*addresses[1:])
    moved = {subject for subject in SUBJECTS if before[subject] != after[subject]}
    assert moved == {subject for subject in SUBJECTS if before[subject] == addresses[0]}
    assert 0.8 / stores < len(moved) / len(SUBJECTS) < 1.25 / stores


def test_order_credentials_and_options_do_not_move_subjects() -> None:
    clock = FakeClock(1_700_000_000)
    one = open_store(["redis://u:old@a:1/0?prefix=x", "redis://b:2/0"], clock)
    two = open_store(["redis://b:2/0?timeout_ms=50", "redis://u:new@a:1/0"], clock)
    assert isinstance(one, ShardedStore)
    assert isinstance(two, ShardedStore)
    assert [one.node_of(subject) for subject in SUBJECTS] == [two.node_of(subject) for subject in SUBJECTS]


def test_sharding_is_stable_across_processes_and_versions() -> None:
    store = sharded("redis://a:6379/0", "redis://b:6379/0", "redis://c:6379/0")
    assert [store.node_of(f"user:{number}") for number in range(12)] == SHARDS


SHARDS = [1, 0, 0, 1, 2, 0, 2, 2, 1, 2, 1, 1]


def test_list_with_duplicates_is_rejected() -> None:
    with pytest.raises(ConfigError, match="listed twice"):
        open_store(["redis://a:1/0?prefix=x", "redis://a:1/0?prefix=y"])
    with pytest.raises(ConfigError, match="at least one"):
        open_store([])
    with pytest.raises(ConfigError, match="unknown store URL"):
        Limiter(["memory://", "nowhere://"])


def test_limiter_over_a_list() -> None:
    limiter = Limiter(["memory://", "memory://"])
    answers = limiter.check_many([(f"user:{number}", "1/hour") for number in range(20)] * 2)
    assert [answer.allowed for answer in answers] == [True] * 20 + [False] * 20
    limiter.close()


class Hung(RemoteStore):
    """A store that never answers: its calls end at their deadline."""

    def __init__(self) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.timeout = 0.2
        self.ended = threading.Event()

    def connect(self) -> None:
        pass

    async def connect_async(self) -> None:
        pass

    def call(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        self.ended.wait(max(deadline - time.monotonic(), 0.0))
        raise StoreError("it hangs")

    def begin(self, batch: object, deadline: float, done: object) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(max(deadline - time.monotonic(), 0.0), done, StoreError("it hangs"))  # type: ignore[arg-type]

    def close(self) -> None:
        self.ended.set()


def with_one_hung() -> tuple[ShardedStore, str, str]:
    stores: dict[str, LocalStore | RemoteStore] = {"a": MemoryStore(), "b": Hung(), "c": MemoryStore()}
    store = ShardedStore(stores)
    hung = next(subject for subject in SUBJECTS if store.node_of(subject) == 1)
    alive = next(subject for subject in SUBJECTS if store.node_of(subject) == 2)
    return store, hung, alive


def test_hanging_store_does_not_delay_the_others() -> None:
    store, hung, alive = with_one_hung()
    limiter = Limiter(store)
    answers = limiter.check_many([(hung, "5/hour"), (alive, "5/hour")])
    assert [answer.reason for answer in answers] == ["fail_open", "ok"]
    store.close()


def test_hanging_store_on_an_event_loop() -> None:
    async def scenario() -> None:
        store, hung, alive = with_one_hung()
        async with AsyncLimiter(store) as limiter:
            answers = await limiter.check_many([(hung, "5/hour"), (alive, "5/hour")])
            assert [answer.reason for answer in answers] == ["fail_open", "ok"]
        store.close()

    asyncio.run(scenario())


def test_chain_over_several_stores_is_atomic() -> None:
    clock = FakeClock(1_700_000_000)
    store = open_store(["memory://"] * 4, clock)
    algorithm = build(Limit(5, 3600), "limit")
    small = build(Limit(2, 3600), "limit")
    members = [Member(f"user:{number}", algorithm, 1) for number in range(6)] + [Member("address", small, 1)]
    verdicts = [all(o.decision.allowed for o in store.apply([Request(Op.TAKE, members)])[0]) for _ in range(4)]
    assert verdicts == [True, True, False, False]
    for number in range(6):
        peeked = store.apply([Request(Op.PEEK, [Member(f"user:{number}", algorithm, 1)])])[0][0].decision
        assert peeked.remaining == 3, "a chain denied by another store gave its charges back"


def test_closed_store_raises_whatever_the_policy() -> None:
    limiter = Limiter(["memory://", "memory://"])
    limiter.check_many([(f"user:{number}", "1/hour") for number in range(20)])
    limiter.close()
    with pytest.raises(StoreClosedError):
        limiter.check("user:1", "1/hour")
    with pytest.raises(StoreClosedError):
        limiter.check_many([(f"user:{number}", "1/hour") for number in range(20)])


def test_shared_file_in_a_list_does_not_block_the_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        paths = [tmp_path / "one", tmp_path / "two"]
        async with AsyncLimiter([f"shared://{path}" for path in paths]) as limiter:
            answers = await limiter.check_many([(f"user:{number}", "1/hour") for number in range(20)] * 2)
            assert [answer.allowed for answer in answers] == [True] * 20 + [False] * 20
            assert {answer.reason for answer in answers} == {"ok", "limited"}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://A/0", "valkey://a:6379"),
        ("redis+sentinel://a/m", "redis+sentinel://a:26379/m/0"),
        ("postgres://u:p@a/db", "postgresql://a:5432/db"),
        ("mysql://a/db", "mariadb://x:y@A:3306/db?timeout_ms=5"),
        ("redis+unix:///s", "redis+unix:///s?db=0"),
    ],
)
def test_two_spellings_of_one_store_are_one_shard(one: str, other: str) -> None:
    assert Options(one).address() == Options(other).address()


def test_two_databases_are_two_shards() -> None:
    assert len({Options(f"redis+unix:///s?db={n}").address() for n in range(3)}) == 3
    assert len({Options(f"redis://a/{n}").address() for n in range(3)}) == 3
