"""The script: one call per batch, sent again after SCRIPT FLUSH, atomic without memory."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from uuid import uuid4

import pytest
import redis

from crestgate import AsyncLimiter, Limit, Limiter, StoreError
from crestgate.core.algorithms import build
from crestgate.stores.port import Member, Op, Request
from crestgate.stores.redis.codec import KINDS
from crestgate.stores.redis.script import SCRIPT
from crestgate.testing import AsyncStoreAdapter, FakeClock
from servers.redis import RedisCluster, RedisServer
from unit.stores.redis.store_requests import ALGORITHMS, apply, limit, peek, store_at, take


def calls(client: redis.Redis) -> Counter[str]:
    """How often each command was executed since the statistics were reset, including those of scripts."""
    stats: dict[str, dict[str, int]] = client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): numbers["calls"] for name, numbers in stats.items()})


# -- how often it runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("checks", "runs"), [(1, 1), (100, 1), (500, 1), (501, 2), (1000, 2)])
def test_batch_is_one_script_call(server: RedisServer, client: redis.Redis, checks: int, runs: int) -> None:
    with Limiter(f"{server.url}?timeout_ms=10000") as limiter:
        client.config_resetstat()
        decisions = limiter.check_many([(f"user:{i}", "5/hour") for i in range(checks)])
        assert all(decision.reason == "ok" for decision in decisions)
        counted = calls(client)
        assert (counted["evalsha"], counted["time"], counted["eval"]) == (runs, runs, 0)


def test_chain_of_twenty_is_one_script_call(server: RedisServer, client: redis.Redis) -> None:
    chain = [Limit(100 - i, 3600, algorithm=ALGORITHMS[i % 6], name=f"limit-{i}") for i in range(20)]
    with Limiter(f"{server.url}?timeout_ms=10000") as limiter:
        client.config_resetstat()
        decision = limiter.check("user:42", chain, cost=3)
        assert [part.remaining for part in decision.parts] == [97 - i for i in range(20)]
        assert (decision.name, decision.remaining) == ("limit-19", 78)
        counted = calls(client)
        assert (counted["evalsha"], counted["time"]) == (1, 1)
        denied = limiter.check("user:42", chain, cost=80)
        assert (denied.allowed, denied.reason) == (False, "limited")
        assert [part.remaining for part in limiter.peek("user:42", chain).parts] == [97 - i for i in range(20)]


def test_tasks_share_script_calls(server: RedisServer, client: redis.Redis) -> None:
    async def two_hundred() -> list[str]:
        async with AsyncLimiter(f"{server.url}?timeout_ms=10000") as limiter:
            client.config_resetstat()
            decisions = await asyncio.gather(*(limiter.check(f"user:{i}", "5/hour") for i in range(200)))
            return [decision.reason for decision in decisions]

    assert asyncio.run(two_hundred()) == ["ok"] * 200
    counted = calls(client)
    assert 1 <= counted["evalsha"] <= 5
    assert counted["time"] == counted["evalsha"]


def test_threads_share_script_calls(server: RedisServer, client: redis.Redis) -> None:
    with Limiter(f"{server.url}?timeout_ms=10000") as limiter, ThreadPoolExecutor(32) as pool:
        client.config_resetstat()
        decisions = list(pool.map(lambda i: limiter.check(f"user:{i % 7}", "1000/hour"), range(2000)))
    assert all(decision.reason == "ok" for decision in decisions)
    counted = calls(client)
    assert counted["evalsha"] < 2000
    assert counted["time"] == counted["evalsha"]


def test_cluster_has_one_script_call_per_tag(redis_cluster: RedisCluster) -> None:
    store = store_at(redis_cluster.url, prefix=uuid4(), tags=64)
    store.connect()
    subjects = [f"user:{i}" for i in range(300)]
    with ExitStack() as stack:
        masters = [stack.enter_context(redis.Redis(port=node.port)) for node in redis_cluster.masters]
        for master in masters:
            master.config_resetstat()
        store.apply([Request(Op.TAKE, [Member(subject, limit("5/hour"), 1)]) for subject in subjects])
        counted = sum((calls(master) for master in masters), Counter[str]())
    assert store._cluster is not None
    tags = {store._cluster.tag(subject.encode()) for subject in subjects}
    assert counted["evalsha"] == counted["time"] == len(tags) == 64
    store.close()


# -- flushed scripts --------------------------------------------------------------------------------------------------


@contextmanager
def forgetting(servers: Sequence[RedisServer]) -> Iterator[Callable[[], int]]:
    """Flush the scripts of all servers continuously, and count the flushes."""
    over = threading.Event()
    flushed = itertools.count()
    done = 0

    def flush() -> None:
        nonlocal done
        with ExitStack() as stack:
            clients = [stack.enter_context(redis.Redis(port=server.port)) for server in servers]
            while not over.is_set():
                for client in clients:
                    client.script_flush()
                done = next(flushed)

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        yield lambda: done
    finally:
        over.set()
        thread.join()


@pytest.fixture(params=["one", "cluster"])
def topology(
    request: pytest.FixtureRequest, server: RedisServer, redis_cluster: RedisCluster
) -> tuple[str, list[RedisServer]]:
    """A URL, and the servers that decide."""
    chosen = (server.url, [server]) if request.param == "one" else (redis_cluster.url, redis_cluster.masters)
    return f"{chosen[0]}?prefix={uuid4()}", chosen[1]


def test_script_flushed_between_two_checks(topology: tuple[str, list[RedisServer]]) -> None:
    url, servers = topology
    store = store_at(url)
    for on in (store, AsyncStoreAdapter(store_at(url))):
        for _ in range(3):
            for server in servers:
                server.cli("SCRIPT", "FLUSH")
            reply = on.apply([Request(Op.TAKE, [Member(f"user:{i}", limit("100/year"), 1)]) for i in range(50)])
            assert all(outcome.decision.allowed for (outcome,) in reply)
        on.close()
    store = store_at(url)
    assert {peek(store, limit("100/year"), f"user:{i}").remaining for i in range(50)} == {94}
    store.close()


def test_script_flushed_repeatedly_under_threads(topology: tuple[str, list[RedisServer]]) -> None:
    url, servers = topology
    with (
        Limiter(f"{url}&timeout_ms=10000", on_store_error="closed") as limiter,
        ThreadPoolExecutor(8) as pool,
        forgetting(servers) as flushed,
    ):

        def check(number: int) -> int:
            decisions = limiter.check_many([(f"user:{i}", "500/year") for i in range(10)])
            return sum(decision.allowed for decision in decisions)

        admitted = sum(pool.map(check, range(600)))
        assert limiter.store_failures == 0
        assert admitted == 10 * 500
        assert flushed() > 10


def test_script_flushed_repeatedly_under_tasks(topology: tuple[str, list[RedisServer]]) -> None:
    url, servers = topology

    async def load() -> tuple[int, int]:
        async with AsyncLimiter(f"{url}&timeout_ms=10000", on_store_error="closed") as limiter:

            async def caller(number: int) -> int:
                admitted = 0
                for turn in range(150):
                    admitted += (await limiter.check(f"user:{turn % 10}", "500/year")).allowed
                return admitted

            return sum(await asyncio.gather(*map(caller, range(40)))), limiter.store_failures

    with forgetting(servers) as flushed:
        assert asyncio.run(load()) == (10 * 500, 0)
        assert flushed() > 10


# -- a server without memory ------------------------------------------------------------------------------------------


def test_out_of_memory_changes_nothing(server: RedisServer, client: redis.Redis) -> None:
    store = store_at(server.url, FakeClock(1_700_000_000))
    limits = [build(Limit(100, 3600, algorithm=algorithm), algorithm) for algorithm in ALGORITHMS]
    for ours in limits:
        assert take(store, ours, "old", 5).allowed
    before = {key: client.dump(key) for key in client.keys()}
    client.config_set("maxmemory", 1)
    try:
        for ours, other in itertools.permutations(limits, 2):
            for batch in (
                [Request(Op.TAKE, [Member("old", ours, 1), Member("new", other, 1)])],
                [Request(Op.TAKE, [Member("new", ours, 1), Member("old", other, 1)])],
                [Request(Op.CHARGE, [Member("old", ours, 1)]), Request(Op.RESET, [Member("old", other, 0)])],
            ):
                with pytest.raises(StoreError, match="OOM"):
                    store.apply(batch)
        assert {key: client.dump(key) for key in client.keys()} == before
        assert peek(store, limits[0], "old").remaining == 95, "a peek needs no memory"
        # A script that frees memory first is executed completely.
        apply(store, Op.RESET, Member("old", limits[0], 0))
        replies = store.apply(
            [Request(Op.RESET, [Member("old", limits[1], 0)]), Request(Op.TAKE, [Member("new", limits[1], 1)])]
        )
        assert replies[1][0].decision.remaining == 99
    finally:
        client.config_set("maxmemory", 0)
    assert [take(store, ours, "old", 1).remaining for ours in limits] == [99, 99, 94, 94, 94, 94]
    store.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_maximum_cost(server: RedisServer, client: redis.Redis, algorithm: str) -> None:
    highest = 2**31 - 1
    huge = {"huge": Limit(10**10, 3600, algorithm=algorithm)}
    with Limiter(f"{server.url}?timeout_ms=10000", plans=huge, clock=FakeClock(1_700_000_000)) as limiter:
        verdicts = [limiter.check("key", "huge", cost=highest).remaining for _ in range(5)]
        assert verdicts == [10**10 - i * highest for i in (1, 2, 3, 4, 4)]
        assert limiter.check("key", "huge", cost=10**10 - 4 * highest).remaining == 0
        with limiter.reserve("other", "huge", cost=highest) as reservation:
            reservation.settle(1)
        assert limiter.peek("other", "huge").remaining == 10**10 - 1
        with pytest.raises(ValueError, match="2147483647"):
            limiter.check("key", "huge", cost=highest + 1)


def test_every_algorithm_of_the_codec_has_a_constructor_in_lua() -> None:
    constructed = set(map(int, re.findall(r"constructors\[(\d+)\]", SCRIPT)))
    assert {*KINDS.values()} == constructed
