"""What the workers of one machine share besides the store: listening sockets, a temporary directory, notifications.

Sockets     One for each of HTTP, gRPC and, where it is on, RESP; all workers accept from all. They are opened before
            anything else: a first API key that was created and never printed, because an address is in use, would be
            lost.
Directory   Created at the start, removed at the end. It holds the counters of admin calls and of checks per node,
            which must work while the store is down, and the metrics of each worker.
Notifier    Each worker polls the rule database every second. Databases that do not push changes (SQLite, MySQL) would
            leave the other workers stale for that second, so a worker that has written a rule sends a datagram to the
            socket of each other worker. A lost datagram costs that second.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from crestgate.config.settings import Address, ServerSettings
from crestgate.errors import ConfigError
from crestgate.runtime.file_locks import has_shared_memory

__all__ = ["TRAFFIC", "ListenSockets", "NodeDirectory", "WorkerNotifier", "address_of", "listen", "node_folder"]

BACKLOG = 2048
RECEIVE_BUFFER = 64 * 1024
"""Bytes that the kernel buffers per HTTP or RESP connection, and so about the size of one read. The default is
megabytes, with which hundreds of connections that send a lot would starve all others."""
MAX_KEYS = 20_000
"""Counters of callers, by API key and by address. Addresses are bounded whoever calls."""
SOCKET_SUFFIX = ".notify"
RULES, TRAFFIC = b"!", b"t"
"""What a worker is notified of."""


class ListenSockets(NamedTuple):
    """The listening sockets. They can be passed to another process."""

    http: socket.socket
    grpc: socket.socket
    resp: socket.socket | None = None

    def close(self) -> None:
        for one in self:
            if one is not None:
                one.close()


def listen(server: ServerSettings) -> ListenSockets:
    """Open all sockets; ConfigError says which address is unavailable, and why."""
    with ExitStack() as opened:
        http = opened.enter_context(_listen(server.http, "http"))
        grpc = opened.enter_context(_listen(server.grpc, "grpc"))
        resp = None if server.resp is None else opened.enter_context(_listen(server.resp, "resp"))
        for one in (http, resp):
            if one is not None:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)  # accepted connections inherit it
        opened.pop_all()
        return ListenSockets(http, grpc, resp)


def address_of(listening: socket.socket) -> Address:
    """The actual address: port 0 is replaced by the one the kernel chose."""
    host, port = listening.getsockname()[:2]
    return Address(host, port)


def _listen(address: Address, name: str) -> socket.socket:
    try:
        (family, *_), *_ = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        number = error.errno or 0  # name resolution errors are below zero
        reason = os.strerror(number) if number > 0 else error.strerror
        raise ConfigError(
            f"server.{name}: cannot listen on {address}: {reason}; "
            f"--{name} HOST:PORT or CRESTGATE_SERVER__{name.upper()} sets another address"
        ) from error


@dataclass(frozen=True, slots=True)
class NodeDirectory:
    """The temporary directory of one node."""

    folder: str
    workers: int = 1

    @property
    def counters(self) -> str:
        """Store URL of the counters that only this node uses, and all of its workers share."""
        path = quote(os.path.join(self.folder, "callers"))
        if has_shared_memory():
            return f"shared://{path}?max_keys={MAX_KEYS}"
        return f"memory://?max_keys={MAX_KEYS}" if self.workers == 1 else f"sqlite:///{path}.db"

    @property
    def snapshots(self) -> str:
        """Where the workers publish their metrics."""
        return os.path.join(self.folder, "snapshots")


@contextmanager
def node_folder(workers: int = 1) -> Iterator[NodeDirectory]:
    """A new directory that only its user can read, removed at the end."""
    folder = tempfile.mkdtemp(prefix="crestgate-")
    try:
        yield NodeDirectory(folder, workers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class WorkerNotifier:
    """Notifies the other workers of this node of changed rules."""

    def __init__(self, folder: str, worker: int) -> None:
        self._folder = folder
        self._name = f"worker-{worker}{SOCKET_SUFFIX}"
        self._socket: socket.socket | None = None
        if not hasattr(socket, "AF_UNIX"):  # Windows: a node has one worker, which nobody notifies
            return
        path = os.path.join(folder, self._name)
        with suppress(FileNotFoundError):
            os.unlink(path)  # left behind by a predecessor
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(path)

    def listen(self, callback: Callable[[], None], on_traffic: Callable[[], None] | None = None) -> None:
        """Call `callback` on the running event loop whenever another worker notifies this one of changed rules, and
        `on_traffic` when it needs the traffic that this one has recorded."""
        notifications = self._socket
        if notifications is None:
            return

        def receive() -> None:
            kinds: set[bytes] = set()
            with suppress(BlockingIOError):
                while kind := notifications.recv(16):
                    kinds.add(kind)
            if kinds != {TRAFFIC}:
                callback()
            if TRAFFIC in kinds and on_traffic is not None:
                on_traffic()

        asyncio.get_running_loop().add_reader(notifications, receive)

    def notify(self, kind: bytes = RULES) -> None:
        """Notify all other workers, of changed rules unless said otherwise. Thread-safe."""
        if self._socket is None:
            return
        with suppress(FileNotFoundError):
            for name in os.listdir(self._folder):
                if name.endswith(SOCKET_SUFFIX) and name != self._name:
                    with suppress(OSError):  # it is gone, or its buffer is full of notifications
                        self._socket.sendto(kind, os.path.join(self._folder, name))

    def close(self) -> None:
        if self._socket is None:
            return
        with suppress(RuntimeError):  # no event loop: nothing to remove
            asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
