"""Configuration errors are reported on connect, and a server that hangs does not hide the others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
import uvloop

from crestgate import AsyncLimiter, Limiter, StoreError
from crestgate.stores.redis import RedisStore
from servers.redis import RedisCluster, RedisSentinels, RedisServer


@pytest.fixture
def hanging() -> Iterator[int]:
    """The port of a server that accepts connections and never replies."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def assert_refused_on_connect(url: str, message: str) -> None:
    async def enter() -> None:
        async with AsyncLimiter(url):
            pass

    with pytest.raises(StoreError, match=message):
        Limiter(url)
    with pytest.raises(StoreError, match=message):
        asyncio.run(enter())


def test_replica_is_rejected(redis_sentinels: RedisSentinels) -> None:
    assert_refused_on_connect(redis_sentinels.replica.url, "write the address of the master")


def test_cluster_node_is_rejected(redis_cluster: RedisCluster) -> None:
    node = redis_cluster.nodes[0]
    assert_refused_on_connect(node.url, f"write redis\\+cluster://127.0.0.1:{node.port}")


def test_user_without_write_permission_under_the_prefix(redis_server: RedisServer) -> None:
    redis_server.cli("ACL", "SETUSER", "narrow", "on", ">secret", "~other:*", "+@all")
    url = redis_server.url.replace("//", "//narrow:secret@")
    assert_refused_on_connect(url, "(?i)permission")
    with Limiter(f"{url}?prefix=other") as limiter:
        assert limiter.check("user:42", "5/hour").reason == "ok"


def test_probe_leaves_no_keys(redis_server: RedisServer) -> None:
    with Limiter(f"{redis_server.url}?prefix=probed"):
        assert redis_server.cli("KEYS", "probed:*") == ""


@pytest.mark.parametrize("side", ["sync", "async"])
def test_cluster_whose_first_node_hangs(redis_cluster: RedisCluster, hanging: int, side: str) -> None:
    nodes = redis_cluster.url.partition("//")[2]
    assert_checks_succeed(f"redis+cluster://127.0.0.1:{hanging},{nodes}?timeout_ms=1500", side)


@pytest.mark.parametrize("side", ["sync", "async"])
def test_first_sentinel_hangs(redis_sentinels: RedisSentinels, hanging: int, side: str) -> None:
    others = redis_sentinels.url.partition("//")[2]
    assert_checks_succeed(f"redis+sentinel://127.0.0.1:{hanging},{others}?timeout_ms=1500", side)


def assert_checks_succeed(url: str, side: str) -> None:
    """Each check repeats the discovery and tries the hanging server first, until its breaker opens."""

    def mark_stale(limiter: Limiter | AsyncLimiter) -> None:
        store = limiter.store
        assert isinstance(store, RedisStore)
        topology = store._topology
        topology.stale = True
        servers = topology.seeds if hasattr(topology, "seeds") else topology.sentinels  # type: ignore[attr-defined]
        servers.sort(key=lambda address: f":{address.port}" not in url.partition(",")[0])

    async def check_async() -> list[str]:
        async with AsyncLimiter(url) as limiter:
            reasons = []
            for _ in range(4):
                mark_stale(limiter)
                reasons.append((await limiter.check("user:42", "100/hour")).reason)
            return reasons

    if side == "async":
        assert asyncio.run(check_async()) == ["ok"] * 4
        return
    with Limiter(url) as limiter:
        for _ in range(4):
            mark_stale(limiter)
            assert limiter.check("user:42", "100/hour").reason == "ok"


def test_uvloop(redis_server: RedisServer) -> None:
    async def checks() -> list[str]:
        async with AsyncLimiter(f"{redis_server.url}?prefix=uvloop&timeout_ms=10000") as limiter:
            return [(await limiter.check("user:42", "2/hour")).reason for _ in range(3)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(checks()) == ["ok", "ok", "limited"]
