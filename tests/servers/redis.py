"""Redis for the tests: one server, a cluster, or a master and its replica under sentinels.

Each has a configuration file, because sentinels make servers rewrite it. The tests write it once, and the server owns
it from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from servers.group import ServerGroup
from servers.machine import PATIENCE, ServerError, find, free_port, run, until
from servers.process import ServerProcess

__all__ = ["RedisCluster", "RedisSentinels", "RedisServer", "Sentinel"]

_PACKAGE = "redis-server"
_BUS = 10_000
"""So far above its port does a node of a cluster talk with the others."""
_SLOTS = 16_384
_EMPTY = '""'


class RedisServer(ServerProcess):
    """One Redis without persistence: its counters are lost when it exits.

    `settings` are further lines of its configuration, such as `{"maxmemory-policy": "allkeys-lru"}`.
    """

    kind = "redis"

    def __init__(
        self,
        *,
        unix: bool = False,
        password: str | None = None,
        tls: bool = False,
        maxmemory: str | None = None,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__(port)
        self.password = password
        self.socket = self.folder / "redis.sock" if unix else None
        self.certificate = self_signed(self.folder) if tls else None
        self.settings = {"bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": str(self.folder)}
        self.settings["repl-diskless-sync"] = "no"  # otherwise it waits for more replicas, and for each to start
        self.settings["tls-port" if tls else "port"] = str(self.port)
        if self.certificate is not None:
            self.settings |= {
                "port": "0",
                "tls-cert-file": str(self.certificate),
                "tls-key-file": str(self.certificate.with_suffix(".key")),
                "tls-ca-cert-file": str(self.certificate),
                "tls-auth-clients": "no",
            }
        if self.socket is not None:
            self.settings["unixsocket"] = str(self.socket)
        if password is not None:
            self.settings["requirepass"] = password
        if maxmemory is not None:
            self.settings["maxmemory"] = maxmemory
        self.settings |= settings or {}
        self.further_lines: list[str] = []

    @property
    def url(self) -> str:
        return f"{'rediss' if self.certificate else 'redis'}://{self._login}127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        assert self.socket is not None, "started without a socket"
        return f"redis+unix://{self._login}{self.socket}"

    @property
    def _login(self) -> str:
        return "" if self.password is None else f":{self.password}@"

    @property
    def role(self) -> str:
        """The role that it reports: master or slave."""
        return self.cli("ROLE").split("\n")[0]

    @property
    def followed(self) -> bool:
        """Whether a replica is in sync, and receives new writes."""
        return "state=online" in self.cli("INFO", "replication")

    def command(self) -> list[str]:
        file = self.folder / "redis.conf"
        if not file.exists():
            lines = [f"{name} {value or _EMPTY}" for name, value in self.settings.items()]
            file.write_text("\n".join([*lines, *self.further_lines, ""]))
        return [find("redis-server", _PACKAGE), str(file)]

    def ready(self) -> bool:
        return f"process_id:{self.pid}\r" in self.cli("INFO", "server")

    def cli(self, *words: str | int, patience: float = PATIENCE) -> str:
        """The reply of the server, as `redis-cli` prints it."""
        tls = [] if self.certificate is None else ["--tls", "--cacert", str(self.certificate)]
        login = {} if self.password is None else {"REDISCLI_AUTH": self.password}
        command = [find("redis-cli", "redis-tools"), "-e", "-p", str(self.port), *tls, *map(str, words)]
        return run(command, patience=patience, environment=login)


class RedisCluster(ServerGroup):
    """Three masters that share the keys, each with a replica that takes over after about `node_timeout` seconds.

    Who is a master may change at every failover, so `masters`, `replicas` and `master_of` ask those that answer.
    """

    def __init__(self, *, node_timeout: float = 2.0, settings: Mapping[str, str] | None = None) -> None:
        shared = {"cluster-enabled": "yes", "cluster-node-timeout": str(int(node_timeout * 1000)), **(settings or {})}
        self.nodes = [RedisServer(port=free_port(_BUS), settings=shared) for _ in range(6)]
        self._formed = False

    @property
    def members(self) -> list[RedisServer]:
        return self.nodes

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    @property
    def masters(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.answers and node.role == "master"]

    @property
    def replicas(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.answers and node.role == "slave"]

    def master_of(self, key: str) -> RedisServer:
        """The node that decides about this key, as one of the masters that run sees it now."""
        witness = self.masters[0]
        slot = int(witness.cli("CLUSTER", "KEYSLOT", key))
        for line in witness.cli("CLUSTER", "NODES").split("\n"):
            _, address, _, _, _, _, _, _, *slots = line.split()
            for first, _, last in (piece.partition("-") for piece in slots):
                if first.isdigit() and int(first) <= slot <= int(last or first):
                    port = int(address.partition("@")[0].rpartition(":")[2])
                    return next(node for node in self.nodes if node.port == port)
        raise ServerError(f"no master has slot {slot}")

    def assemble(self) -> None:
        self.bring_up(self.nodes)
        if not self._formed:
            addresses = [f"127.0.0.1:{node.port}" for node in self.nodes]
            self.nodes[0].cli("--cluster", "create", *addresses, "--cluster-replicas", 1, "--cluster-yes")
            self._formed = True
        until("the cluster is whole", self.whole)

    def whole(self) -> bool:
        """Whether all nodes see all slots served, and every replica is in step."""
        wanted = {"cluster_state:ok", f"cluster_slots_ok:{_SLOTS}", "cluster_known_nodes:6", "cluster_size:3"}
        if not all(wanted <= set(node.cli("CLUSTER", "INFO").split()) for node in self.nodes):
            return False
        followed = [node.followed for node in self.masters]
        linked = ["master_link_status:up" in node.cli("INFO", "replication") for node in self.replicas]
        return followed == linked == [True] * 3


class RedisSentinels(ServerGroup):
    """A master and its replica, and three sentinels, two of which must agree that the master is down.

    `master` and `replica` are what they were at the start, whoever is promoted; `current` asks the sentinels. With a
    `down_after` of a second or less they may fail over twice: so long do they wait before they connect to a new master.
    """

    def __init__(
        self, *, down_after: float = 1.5, failover_timeout: float = 3.0, settings: Mapping[str, str] | None = None
    ) -> None:
        self.master = RedisServer(settings=settings)
        self.replica = RedisServer(settings={"replicaof": f"127.0.0.1 {self.master.port}", **(settings or {})})
        self.sentinels = [Sentinel(self.master.port, down_after, failover_timeout) for _ in range(3)]

    @property
    def members(self) -> list[RedisServer]:
        return [self.master, self.replica, *self.sentinels]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/mymaster/0"

    @property
    def current(self) -> RedisServer:
        """The master according to the sentinels."""
        ports = {sentinel.master_port for sentinel in self.sentinels if sentinel.answers}
        return self.replica if ports == {self.replica.port} else self.master

    def assemble(self) -> None:
        """Sentinels look for replicas when they start, and then not for ten seconds: so they start last."""
        self.bring_up([self.master, self.replica])
        if "slave" in (self.master.role, self.replica.role):  # otherwise the sentinels do it
            until("the replica is in step", lambda: self.master.followed or self.replica.followed)
        self.bring_up(self.sentinels)
        until("the sentinels know each other and the replica", lambda: all(s.sees_all for s in self.sentinels))
        until("the master has its replica", lambda: self.current.followed)


class Sentinel(RedisServer):
    """One of three that watch a master, and promote its replica when it is down."""

    kind = "sentinel"

    def __init__(self, master_port: int, down_after: float, failover_timeout: float) -> None:
        super().__init__()
        self.further_lines = [
            f"sentinel monitor mymaster 127.0.0.1 {master_port} 2",
            f"sentinel down-after-milliseconds mymaster {int(down_after * 1000)}",
            f"sentinel failover-timeout mymaster {int(failover_timeout * 1000)}",
        ]
        self.settings = {name: self.settings[name] for name in ("bind", "port", "dir")}

    @property
    def master_port(self) -> int:
        return int(self.cli("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster").split()[1])

    @property
    def sees_all(self) -> bool:
        words = self.cli("SENTINEL", "MASTER", "mymaster").split("\n")
        seen = dict(zip(words[::2], words[1::2], strict=False))
        wanted = {"flags": "master", "num-slaves": "1", "num-other-sentinels": "2"}
        return wanted.items() <= seen.items()

    def command(self) -> list[str]:
        return [*super().command(), "--sentinel"]


def self_signed(folder: Path) -> Path:
    """A certificate for 127.0.0.1 and localhost that signs itself; its key lies beside it, as `.key`."""
    certificate = folder / "server.crt"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(certificate.with_suffix(".key")), "-out", str(certificate)]
    run([find("openssl", "openssl"), "req", "-x509", "-days", "2", *key, *subject, *files])
    return certificate
