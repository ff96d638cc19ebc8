"""The test servers start, pause, crash, restart, and leave no processes or files behind."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from servers.machine import ServerError, find, gone, private_folder, run, stat, until
from servers.mariadb import MariaDB, MariaDBPair
from servers.postgres import Postgres, PostgresPair
from servers.process import GivenServer
from servers.redis import RedisCluster, RedisSentinels, RedisServer

TESTS = Path(__file__).resolve().parent.parent


def killed(importing: str, then: str = "") -> list[int]:
    """The processes of a server whose test process was killed."""
    program = f"{importing}\nserver = Server()\nserver.start()\n{then}\nprint(*server.pids, flush=True)\ninput()"
    folder = private_folder("killed")
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(folder)}
    folder.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as tests:
        assert tests.stdout is not None
        pids = [int(word) for word in tests.stdout.readline().split()]
        assert not any(map(gone, pids))
        tests.send_signal(signal.SIGKILL)
    return pids


def test_missing_server_error_names_the_package() -> None:
    with pytest.raises(ServerError, match="apt-get install no-such-package"):
        find("no-such-program", "no-such-package")


def test_failed_start_shows_the_log() -> None:
    with pytest.raises(ServerError, match="no-such-setting"), RedisServer(settings={"no-such-setting": "1"}):
        pass


def test_failed_group_start_shows_all_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MariaDBPair, "status", lambda self: until("never", lambda: False, patience=0.01))
    with pytest.raises(ServerError, match=r"(?s)never.*ready for connections"), MariaDBPair():
        pass


def test_servers_exit_when_the_tests_are_killed() -> None:
    pids = killed("from servers.redis import RedisServer as Server")
    assert pids
    until("the server is gone too", lambda: all(map(gone, pids)))


def test_redis_pauses_crashes_and_restarts() -> None:
    with RedisServer() as server:
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        server.cli("SET", "key", "value")
        server.pause()
        with pytest.raises(subprocess.TimeoutExpired):
            server.cli("PING", patience=0.1)
        server.resume()
        assert server.cli("GET", "key") == "value"
        first = server.pid
        server.kill()
        assert gone(first)
        with pytest.raises(ServerError, match="refused"):
            server.cli("PING")
        server.start()
        assert server.cli("GET", "key") == ""
        second = server.pid
        server.restart()
        assert gone(second)
        last, folder = server.pid, server.folder
        server.pause()  # and must still stop
    assert gone(last)
    assert not folder.exists()


def test_redis_with_all_options() -> None:
    with RedisServer(unix=True, password="secret", tls=True, maxmemory="2mb") as server:
        assert server.url == f"rediss://:secret@127.0.0.1:{server.port}/0"
        assert server.unix_url == f"redis+unix://:secret@{server.socket}"
        assert server.socket is not None
        assert server.socket.is_socket()
        assert server.cli("CONFIG", "GET", "maxmemory").split() == ["maxmemory", str(2 * 1024 * 1024)]
        assert server.certificate is not None
        context = ssl.create_default_context(cafile=str(server.certificate))
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(b"PING\r\n")
            assert secure.recv(100).startswith(b"-NOAUTH")


def test_cluster_fails_over_and_recovers() -> None:
    with RedisCluster(node_timeout=1.0) as cluster:
        ports = [str(node.port) for node in cluster.nodes]
        assert cluster.url == "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        assert (len(cluster.masters), len(cluster.replicas), len(cluster.pids)) == (3, 3, 6)
        lost = cluster.master_of("key")
        assert lost.cli("SET", "key", "value") == "OK"
        lost.pause()
        until("a replica has taken over", lambda: cluster.master_of("key") is not lost)
        assert cluster.master_of("key").cli("GET", "key") == "value"
        lost.kill()
        cluster.start()
        assert lost.role == "slave"
        pids = cluster.pids
        assert len(pids) == 6
    assert all(map(gone, pids))


def test_sentinels_promote_the_replica() -> None:
    with RedisSentinels() as sentinels:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels.sentinels)
        assert sentinels.url == f"redis+sentinel://{hosts}/mymaster/0"
        assert sentinels.current is sentinels.master
        sentinels.master.cli("SET", "key", "value")
        sentinels.master.pause()
        until("the replica is promoted", lambda: sentinels.current is sentinels.replica)
        assert sentinels.replica.role == "master"
        assert sentinels.replica.cli("GET", "key") == "value"
        pids = sentinels.pids
        assert len(pids) == 5
    assert all(map(gone, pids))


def as_user(server: MariaDB | Postgres, statement: str) -> str:
    """The result of a statement as the user of the URL, over TCP."""
    if isinstance(server, Postgres):
        return run(["psql", server.url, "-Atqc", statement])
    who = ["--host=127.0.0.1", f"--port={server.port}", "--user=crestgate", "--password=secret", "--database=crestgate"]
    return run(["mariadb", "--no-defaults", *who, "-BNe", statement])


@pytest.mark.parametrize("make", [MariaDB, Postgres])
def test_database_pauses_crashes_and_restarts(make: type[MariaDB] | type[Postgres]) -> None:
    with make() as server:
        assert f"://crestgate:secret@127.0.0.1:{server.port}/crestgate" in server.url
        as_user(server, "CREATE TABLE things (id INT)")
        as_user(server, "INSERT INTO things VALUES (7)")
        server.pause()
        frozen = server.pids
        assert {stat(pid)[0] for pid in frozen} == {"T"}
        with pytest.raises(subprocess.TimeoutExpired):
            server.sql("SELECT 1", patience=0.3)
        server.resume()
        assert server.sql("SELECT id FROM things") == "7"
        family = server.pids
        server.kill()
        assert all(map(gone, family))
        with pytest.raises(ServerError):
            server.sql("SELECT 1")
        server.start()
        server.sql("INSERT INTO things VALUES (8)")
        family = server.pids
        server.restart()
        assert all(map(gone, family))
        assert server.sql("SELECT id FROM things") == "7\n8"
        family, folder = server.pids, server.folder
        server.pause()
    assert all(map(gone, family))
    assert not folder.exists()


@pytest.mark.parametrize("semi_sync", [False, True])
def test_promoted_replica_has_all_commits(semi_sync: bool) -> None:
    with MariaDBPair(semi_sync=semi_sync) as pair:
        pair.primary.sql("CREATE TABLE things (id INT); INSERT INTO things VALUES (7)")
        pair.catch_up()
        assert pair.replica.sql("SELECT id FROM things") == "7"
        assert pair.replica.sql("SELECT @@read_only") == "1"
        if semi_sync:
            pair.primary.sql("INSERT INTO things VALUES (8)")  # commits do not wait for the replica
        pair.primary.kill()
        pair.promote()
        assert pair.replica.sql("SELECT @@read_only") == "0"
        assert pair.replica.sql("SELECT id FROM things") == ("7\n8" if semi_sync else "7")
        pair.replica.restart()
        pair.replica.sql("INSERT INTO things VALUES (9)")
        pids = pair.pids
    assert all(map(gone, pids))


def test_paused_postgres_exits_when_the_tests_are_killed() -> None:
    pids = killed("from servers.postgres import Postgres as Server", "server.pause()")
    assert len(pids) > 1
    until("all are gone", lambda: all(map(gone, pids)))


def test_shared_servers(
    redis_server: RedisServer | GivenServer,
    redis_cluster: RedisCluster,
    redis_sentinels: RedisSentinels,
    mariadb: MariaDB | GivenServer,
    mariadb_pair: MariaDBPair,
    postgres: Postgres | GivenServer,
) -> None:
    assert redis_server.url.startswith(("redis", "valkey"))
    assert mariadb.url.startswith(("mysql", "mariadb"))
    assert postgres.url.startswith("postgres")
    assert redis_cluster.whole()
    assert redis_sentinels.current.followed
    assert mariadb_pair.status()["Slave_SQL_Running"] == "Yes"


def test_postgres_standby_follows_and_is_promoted() -> None:
    with PostgresPair() as pair:
        pair.primary.sql("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
        pair.catch_up()
        assert pair.replica.sql("SELECT n FROM t") == "1"
        with pytest.raises(ServerError, match="read-only"):
            pair.replica.sql("INSERT INTO t VALUES (2)")
        pair.primary.kill()
        pair.promote()
        assert pair.replica.sql("INSERT INTO t VALUES (2); SELECT count(*) FROM t") == "2"
