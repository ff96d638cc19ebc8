"""Faults that only some stores have: failover, resharding, LOADING, READONLY, full memory and disks, locks."""

from __future__ import annotations

import random
import socket
import sqlite3
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from chaos.environments import (
    ClusterEnvironment,
    Environment,
    MariaDBEnvironment,
    PostgresEnvironment,
    SentinelEnvironment,
    SqliteEnvironment,
)
from chaos.faults import NO_SERVER, Context, Fault, Repeated
from servers.machine import ServerError, free_port, until
from servers.redis import RedisServer

__all__ = ["OF_STORES"]

SINGLE_REDIS = ("redis", "valkey", "sharded")
REDIS = (*SINGLE_REDIS, "sentinel", "cluster")
SQL = ("mariadb", "postgresql")
PASSWORD = "secret"


def redis_servers(context: Context) -> list[RedisServer]:
    """The Redis servers that take writes."""
    environment = context.environment
    if isinstance(environment, ClusterEnvironment):
        return environment.cluster.masters
    if isinstance(environment, SentinelEnvironment):
        return [environment.current]
    return [server for server in environment.servers if isinstance(server, RedisServer)]


def only(store: str, stores: tuple[str, ...], reason: str) -> str | None:
    if store in stores:
        return None
    return NO_SERVER if store == "memory" else reason


class Failover(Fault):
    """The primary dies, and its replica takes over. The old one comes back as a replica, or stays away (SQL)."""

    name = "failover"
    seconds = (0.0, 0.1)
    epoch_seconds = 12.0
    stores = ("sentinel", "cluster", *SQL)

    once = True  # a pair of databases cannot fail over again

    def unsupported(self, store: str) -> str | None:
        return only(store, self.stores, "no replica that could take over")

    def begin(self, context: Context) -> None:
        environment = context.environment
        victim = environment.victim(context.rng.randrange(10))
        if isinstance(environment, ClusterEnvironment):
            self.masters = {node.port for node in environment.cluster.masters}
        victim.kill()
        if isinstance(environment, SentinelEnvironment):
            until("the sentinels have promoted the replica", lambda: environment.current is not victim)
            until("it is the master", lambda: environment.current.role == "master")
        elif isinstance(environment, ClusterEnvironment):
            until("a replica is the master", lambda: len(environment.cluster.masters) == 3)
            masters = environment.cluster.masters
            until("the cluster works", lambda: all("cluster_state:ok" in m.cli("CLUSTER", "INFO") for m in masters))
        elif isinstance(environment, MariaDBEnvironment):
            environment.fail_over()

    def end(self, context: Context) -> None:
        pass


class Resharding(Repeated):
    """Slots move between masters all the time: MOVED, ASK and TRYAGAIN."""

    name = "resharding"
    interval = (0.0, 0.05)
    seconds = (1.0, 2.5)

    def unsupported(self, store: str) -> str | None:
        return only(store, ("cluster",), "no slots that could be moved")

    def act(self, context: Context, rng: random.Random) -> None:
        environment = context.environment
        assert isinstance(environment, ClusterEnvironment)
        source, target = rng.sample(environment.cluster.masters, 2)
        identity, other = source.cli("CLUSTER", "MYID"), target.cli("CLUSTER", "MYID")
        for slot in self.slots_with_keys(source, identity, rng)[:3]:
            target.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", identity)
            source.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", other)
            time.sleep(rng.uniform(0.0, 0.05))
            while keys := source.cli("CLUSTER", "GETKEYSINSLOT", slot, 10).split("\n"):
                if keys == [""]:
                    break
                source.cli("MIGRATE", "127.0.0.1", target.port, "", 0, 2000, "KEYS", *keys)
            for node in environment.cluster.masters:
                node.cli("CLUSTER", "SETSLOT", slot, "NODE", other)
            context.notes[:] = [f"{self.moved(context)} slots moved"]

    def moved(self, context: Context) -> int:
        self.count = getattr(self, "count", 0) + 1
        return self.count

    def slots_with_keys(self, node: RedisServer, identity: str, rng: random.Random) -> list[int]:
        """Some slots of this node, those that have counters first."""
        slots: list[int] = []
        for line in node.cli("CLUSTER", "NODES").split("\n"):
            if line.startswith(identity):
                for piece in line.split()[8:]:
                    first, _, last = piece.partition("-")
                    if first.isdigit():
                        slots += range(int(first), int(last or first) + 1)
        keys = [key for key in node.cli("KEYS", "*").split("\n") if key]
        used = {int(node.cli("CLUSTER", "KEYSLOT", key)) for key in rng.sample(keys, min(4, len(keys)))}
        return sorted(used & set(slots))


class Loading(Fault):
    """Redis starts again with its data, and answers LOADING until it has read them."""

    name = "loading"
    seconds = (0.0, 0.05)

    def unsupported(self, store: str) -> str | None:
        reason = "answers no LOADING" if store not in REDIS else "its replica would take over: see failover"
        return only(store, SINGLE_REDIS, reason)

    def settings(self, store: str) -> dict[str, str]:
        # Microseconds for each key: a few dozen counters then take a second, as millions would.
        return {"key-load-delay": "10000", "loading-process-events-interval-bytes": "1024"}

    def begin(self, context: Context) -> None:
        server = redis_servers(context)[0]
        server.cli("SAVE")
        server.kill()
        server.launch()
        until("it reads its data", lambda: _info(server, "loading:"))

    def end(self, context: Context) -> None:
        server = redis_servers(context)[0]
        server.wait_ready()
        until("it has read its data", lambda: _info(server, "loading:0\r"))


def _info(server: RedisServer, text: str) -> bool:
    with suppress(ServerError):  # it does not listen yet
        return text in server.cli("INFO", "persistence")
    return False


class ReadOnly(Fault):
    name = "readonly"

    def unsupported(self, store: str) -> str | None:
        if store in ("sentinel", "cluster"):
            return "who is told to be a replica is one: see failover"
        if store == "crestgate":
            return "its store is its own matter: see shared"
        return only(store, (*SINGLE_REDIS, *SQL), "its file is writable as long as its owner runs")

    def begin(self, context: Context) -> None:
        if isinstance(context.environment, PostgresEnvironment):
            context.env.current.sql("ALTER SYSTEM SET default_transaction_read_only = on")
            context.env.current.sql("SELECT pg_reload_conf()")
        elif isinstance(context.environment, MariaDBEnvironment):
            context.env.current.sql("SET GLOBAL read_only = ON")
        else:
            port = free_port()  # nobody listens there, so nothing is copied from it
            for server in redis_servers(context):
                server.cli("REPLICAOF", "127.0.0.1", port)

    def end(self, context: Context) -> None:
        if isinstance(context.environment, PostgresEnvironment):
            context.env.current.sql("SET default_transaction_read_only = off")
            context.env.current.sql("ALTER SYSTEM RESET default_transaction_read_only")
            context.env.current.sql("SELECT pg_reload_conf()")
        elif isinstance(context.environment, MariaDBEnvironment):
            context.env.current.sql("SET GLOBAL read_only = OFF")
        else:
            for server in redis_servers(context):
                server.cli("REPLICAOF", "NO", "ONE")


class OutOfMemory(Fault):
    """No memory is left, and nothing may be evicted: every write is refused."""

    name = "oom"

    def unsupported(self, store: str) -> str | None:
        reason = "bounded by max_keys: it evicts" if store in ("shared", "crestgate") else "its counters are on disk"
        return only(store, REDIS, reason)

    def begin(self, context: Context) -> None:
        for server in redis_servers(context):
            server.cli("CONFIG", "SET", "maxmemory", "1")

    def end(self, context: Context) -> None:
        for server in redis_servers(context):
            server.cli("CONFIG", "SET", "maxmemory", "0")


class MaxConnections(Fault):
    """All connections of the server are taken by others, and ours are cut."""

    name = "max-connections"
    LIMIT = 60  # more than all clients need

    def unsupported(self, store: str) -> str | None:
        if store == "crestgate":
            return "has no such setting: the kernel queues what it does not accept"
        if store in ("sentinel", "cluster"):
            return "its nodes need connections to each other: see redis, and refused"
        return only(store, (*SINGLE_REDIS, *SQL), "no connections")

    def settings(self, store: str) -> dict[str, str]:
        return {"max_connections": str(self.LIMIT)} if store in SQL else {}

    def begin(self, context: Context) -> None:
        self.others: list[Any] = []
        environment = context.environment
        for proxy in environment.proxies:
            proxy.refuse()  # ours are gone
        if isinstance(environment, MariaDBEnvironment):
            with suppress(Exception):  # until it refuses
                for _ in range(self.LIMIT + 5):
                    self.others.append(_connect(environment))
        else:
            for server in redis_servers(context):
                # The one connection that is left is ours, and takes the setting back.
                self.others.append(socket.create_connection(("127.0.0.1", server.port), timeout=10))
                _set_max_clients(self.others[-1], 1)
        for proxy in environment.proxies:
            proxy.pass_all()

    def end(self, context: Context) -> None:
        for other in self.others:
            if isinstance(other, socket.socket):
                _set_max_clients(other, 10_000)
            other.close()
        environment = context.environment
        if isinstance(environment, MariaDBEnvironment):
            # A database ends sessions after their sockets; those of PostgreSQL are processes, and keep their places.
            until("the server has ended the sessions", lambda: _sessions(environment) < self.LIMIT // 2)


def _sessions(environment: MariaDBEnvironment) -> float:
    """The sessions of our user, which clients and strangers share."""
    is_postgres = isinstance(environment, PostgresEnvironment)
    table, user = ("pg_stat_activity", "usename") if is_postgres else ("information_schema.processlist", "user")
    with suppress(ServerError):
        return int(environment.current.sql(f"SELECT count(*) FROM {table} WHERE {user} = 'crestgate'"))
    return float("inf")


def _set_max_clients(connection: socket.socket, count: int) -> None:
    connection.sendall(f"CONFIG SET maxclients {count}\r\n".encode())
    assert connection.recv(100) == b"+OK\r\n"


def _connect(environment: Environment) -> Any:
    """A connection of a stranger to the database, without the proxy."""
    if isinstance(environment, PostgresEnvironment):
        import psycopg

        return psycopg.connect(environment.current.url, autocommit=False)
    assert isinstance(environment, MariaDBEnvironment)
    import pymysql

    login = {"host": "127.0.0.1", "port": environment.current.port, "user": "crestgate", "database": "crestgate"}
    return pymysql.connect(**login, password=PASSWORD, autocommit=False)


class LockWait(Fault):
    """A stranger locks all counters and keeps them."""

    name = "lock-wait"

    def unsupported(self, store: str) -> str | None:
        if store == "shared":
            return "its locks are only taken by clients: see client-stop"
        return only(store, (*SQL, "sqlite"), "no locks that a stranger can take")

    def begin(self, context: Context) -> None:
        if isinstance(context.environment, SqliteEnvironment):
            self.stranger: Any = sqlite3.connect(context.environment.path, timeout=10, isolation_level=None)
            self.stranger.execute("BEGIN IMMEDIATE")
            return
        self.stranger = _connect(context.environment)
        cursor = self.stranger.cursor()
        for _ in range(5):  # clients are there first, or deadlock with us
            try:
                cursor.execute("SELECT id FROM crestgate_counters FOR UPDATE")
                return
            except Exception:  # noqa: BLE001 - of either driver
                self.stranger.rollback()

    def end(self, context: Context) -> None:
        self.stranger.rollback()
        self.stranger.close()


class Deadlock(Repeated):
    """A stranger locks counters in the opposite order."""

    name = "deadlock"
    interval = (0.0, 0.01)
    seconds = (0.8, 2.0)

    def unsupported(self, store: str) -> str | None:
        if store == "sqlite":
            return "one writer at a time: nothing to deadlock"
        return only(store, SQL, "no locks that a stranger can take")

    def begin(self, context: Context) -> None:
        self.stranger = _connect(context.environment)
        super().begin(context)

    def act(self, context: Context, rng: random.Random) -> None:
        cursor = self.stranger.cursor()
        try:
            cursor.execute("SELECT id FROM crestgate_counters ORDER BY id DESC")
            for (identity,) in cursor.fetchall()[:12]:
                cursor.execute("SELECT id FROM crestgate_counters WHERE id = %s FOR UPDATE", (identity,))
                time.sleep(0.001)
        except Exception:  # noqa: BLE001 - the victim of the deadlock, of either driver
            self.count = getattr(self, "count", 0) + 1
            context.notes[:] = [f"{self.count} times the stranger was the victim"]
        finally:
            self.stranger.rollback()

    def end(self, context: Context) -> None:
        super().end(context)
        self.stranger.close()


class FullDisk(Fault):
    """The file system of the store is full: a tmpfs of its own, and a file that fills it."""

    name = "full-disk"

    def unsupported(self, store: str) -> str | None:
        if store in ("mariadb", "postgresql"):
            return "the server itself waits for a minute (MariaDB) or ends (PostgreSQL): see server-stop, server-kill"
        if store in ("sentinel", "cluster", "sharded"):
            return "as redis: nothing is on disk but what redis has"
        if store == "memory":
            return "nothing on disk"
        return None if _can_mount() else "no file system can be mounted here: it needs root"

    def settings(self, store: str) -> dict[str, str]:
        return {"appendonly": "yes", "appendfsync": "everysec"} if store in ("redis", "valkey") else {}

    def prepare(self, environment: Environment, stack: ExitStack) -> None:
        self.place = environment.folder
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "chaos", str(self.place)], check=True)
        stack.callback(subprocess.run, ["umount", "-l", str(self.place)], check=False)
        if environment.settings.get("appendonly"):
            environment.settings["dir"] = str(self.place)

    def begin(self, context: Context) -> None:
        with suppress(OSError), (self.place / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

    def end(self, context: Context) -> None:
        (self.place / "ballast").unlink()


def _can_mount() -> bool:
    from chaos.network import can_isolate

    return can_isolate() and Path("/proc/self/ns/mnt").exists()


OF_STORES: list[Fault] = [
    Failover(),
    Resharding(),
    Loading(),
    ReadOnly(),
    OutOfMemory(),
    MaxConnections(),
    LockWait(),
    Deadlock(),
    FullDisk(),
]
