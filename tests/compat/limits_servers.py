"""The servers that the test-suite of `limits` expects, on the ports that its tests name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from servers.machine import until
from servers.redis import RedisServer, Sentinel

PASSWORD = "sekret"
SOCKET = "/tmp/limits.redis.sock"


class OneSentinel(Sentinel):
    """The only Sentinel of a master."""

    def __init__(self, port: int, master: RedisServer) -> None:
        super().__init__(master.port, 5.0, 10.0)
        self.port = port
        self.password = master.password
        self.settings["port"] = str(port)
        self.further_lines[0] = f"sentinel monitor mymaster 127.0.0.1 {master.port} 1"
        if master.password is not None:
            self.further_lines.append(f"sentinel auth-pass mymaster {master.password}")
            self.settings["requirepass"] = master.password


@contextmanager
def suite_servers() -> Iterator[None]:
    """Start them all; they end with the block."""
    with ExitStack() as stack:
        stack.enter_context(RedisServer(port=7379))
        stack.enter_context(RedisServer(settings={"unixsocket": SOCKET, "unixsocketperm": "700"}))
        _start_sentinel(stack, 26379, None)
        _start_sentinel(stack, 36379, PASSWORD)
        _start_cluster(stack, (7001, 7002, 7003), None)
        _start_cluster(stack, (8400, 8401, 8402), PASSWORD)
        _start_cluster(stack, (8301, 8302, 8303), None, tls=True)
        yield


def _start_sentinel(stack: ExitStack, port: int, password: str | None) -> None:
    login = {} if password is None else {"masterauth": password}
    master = stack.enter_context(RedisServer(password=password, settings=login))
    replicates = {"replicaof": f"127.0.0.1 {master.port}", **login}
    stack.enter_context(RedisServer(password=password, settings=replicates))
    until("the replica is in step", lambda: master.followed)
    sentinel = stack.enter_context(OneSentinel(port, master))
    until("the sentinel knows the replica", lambda: "num-slaves\n1" in sentinel.cli("SENTINEL", "MASTER", "mymaster"))


def _start_cluster(stack: ExitStack, ports: tuple[int, ...], password: str | None, tls: bool = False) -> None:
    settings = {"cluster-enabled": "yes", "cluster-node-timeout": "5000"}
    if tls:
        settings |= {"tls-cluster": "yes", "tls-replication": "yes"}
    nodes: list[RedisServer] = []
    for port in ports:
        node = RedisServer(port=port, password=password, tls=tls, settings=settings)
        if nodes and tls:  # the nodes trust each other's certificate: all have the same
            node.certificate = nodes[0].certificate
            names = ("tls-cert-file", "tls-key-file", "tls-ca-cert-file")
            node.settings |= {name: nodes[0].settings[name] for name in names}
        nodes.append(stack.enter_context(node))
    addresses = [f"127.0.0.1:{port}" for port in ports]
    nodes[0].cli("--cluster", "create", *addresses, "--cluster-replicas", 0, "--cluster-yes")
    until("the cluster is whole", lambda: all("cluster_state:ok" in node.cli("CLUSTER", "INFO") for node in nodes))
