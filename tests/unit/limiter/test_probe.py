"""`probe` and `breakers`: the state of the store itself, whatever the failure policy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from crestgate import AsyncLimiter, Limit, StoreError
from crestgate.stores.breaker import FAILURES
from crestgate.stores.redis.cluster import ClusterTopology
from crestgate.stores.redis.protocol import ServerAddress
from crestgate.stores.remote_store import PROBE
from crestgate.stores.sharded import ShardedStore
from flaky_store import Flaky
from servers.process import GivenServer
from servers.redis import RedisCluster, RedisServer


def probe(limiter: AsyncLimiter) -> None:
    asyncio.run(limiter.probe())


@pytest.mark.parametrize("policy", ["open", "closed", "local"])
def test_probe_ignores_the_failure_policy(policy: str) -> None:
    store = Flaky()
    limiter = AsyncLimiter(store, on_store_error=policy)  # type: ignore[arg-type]  # one of them
    probe(limiter)
    store.broken = True
    with pytest.raises(StoreError, match="does not answer"):
        probe(limiter)
    assert limiter.store_failures == 0, "the policy answered no check"


@pytest.mark.parametrize("kind", ["memory://", "shared://{}/counters", "sqlite:///{}/counters.db"])
def test_probe_leaves_no_counters(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncLimiter(kind.format(tmp_path)) as limiter:
            for _ in range(3):
                await limiter.probe()
            decision = await limiter.peek(PROBE, Limit(1_000_000, 1, name=PROBE))
            assert decision.reset_after == 0

    asyncio.run(main())


def test_probe_reaches_every_store_of_a_list() -> None:
    stores = {name: Flaky() for name in "abcdefgh"}
    sharded = ShardedStore({name: store.inner for name, store in stores.items()})
    assert sorted(map(sharded.node_of, sharded.probe_keys())) == list(range(8))
    stores["f"].inner.close()
    with pytest.raises(StoreError):
        probe(AsyncLimiter(sharded))


def test_probe_reaches_every_master_of_a_cluster(redis_cluster: RedisCluster) -> None:
    seeds = [ServerAddress("127.0.0.1", node.port) for node in redis_cluster.masters]
    cluster = ClusterTopology(seeds)
    assert len(cluster.keys_of_all_masters(PROBE)) == 1, "before discovery, all tags lead to the first node"
    third = 16_384 // 3 + 1
    for number, address in enumerate(seeds):
        for slot in range(number * third, min((number + 1) * third, 16_384)):
            cluster.owners[slot] = address
    keys = cluster.keys_of_all_masters(PROBE)
    owners = [cluster.address_of(cluster.slots[cluster.tag(key.encode())]) for key in keys]
    assert sorted(owners) == sorted(seeds)

    async def main() -> None:
        addresses = ",".join(map(str, seeds))
        async with AsyncLimiter(f"redis+cluster://{addresses}?timeout_ms=5000") as limiter:
            await limiter.probe()
            assert set(limiter.breakers().values()) == {"closed"}
            assert len(limiter.breakers()) >= len(seeds)

    asyncio.run(main())


def test_breakers_are_listed_by_server(redis_server: RedisServer | GivenServer) -> None:
    async def main() -> None:
        async with AsyncLimiter(f"{redis_server.url}?timeout_ms=5000") as limiter:
            await limiter.probe()
            (name,) = limiter.breakers()
            assert name.startswith("Redis at ")
            assert limiter.breakers() == {name: "closed"}

    asyncio.run(main())


def test_failed_server_opens_its_breaker() -> None:
    async def main() -> None:
        limiter = AsyncLimiter("redis://127.0.0.1:1/0?timeout_ms=1000")
        for _ in range(FAILURES + 1):
            with pytest.raises(StoreError):
                await limiter.probe()
        assert limiter.breakers() == {"Redis at 127.0.0.1:1": "open"}
        await limiter.aclose()

    asyncio.run(main())


def test_local_stores_have_no_breakers() -> None:
    assert AsyncLimiter("memory://").breakers() == {}


def test_server_without_memory_fails_the_probe() -> None:
    """It answers reads, and every check that counts is an error."""

    async def main(redis: RedisServer) -> None:
        async with AsyncLimiter(f"{redis.url}?timeout_ms=5000") as limiter:
            await limiter.probe()
            redis.cli("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(StoreError, match="OOM"):
                await limiter.probe()

    with RedisServer() as redis:
        asyncio.run(main(redis))
