"""The network of a run: namespaces of its own where the machine allows them, else loopback.

A run starts itself again in a network namespace of its own, so nothing that it listens on can be reached from outside.
Clients run in a second one, behind a pair of virtual interfaces: to take that link down is a real partition, in which
packets get lost and nobody is told. What is mounted is private, too. All namespaces end with their processes, and leave
nothing behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

__all__ = ["Network", "can_isolate", "enter_namespace"]

ENTERED = "CRESTGATE_CHAOS_NAMESPACE"
SERVER_SIDE, CLIENT_SIDE = "10.77.0.1", "10.77.0.2"


def can_isolate() -> bool:
    """Whether this machine lets us create network namespaces."""
    tools = all(shutil.which(name) for name in ("unshare", "nsenter", "ip"))
    probe = ["unshare", "--net", "--mount", "ip", "link"]
    return tools and subprocess.run(probe, check=False, capture_output=True).returncode == 0


def enter_namespace(arguments: list[str]) -> None:
    """Start this program again in a namespace of its own, unless that was done or cannot be done."""
    if not os.environ.get(ENTERED) and can_isolate():
        os.environ[ENTERED] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, "-m", "chaos", *arguments])


class Network:
    """Where proxies listen, and how clients are started. A context manager."""

    def __init__(self) -> None:
        self.isolated = bool(os.environ.get(ENTERED))
        self.host = SERVER_SIDE if self.isolated else "127.0.0.1"
        self.server_address = SERVER_SIDE if self.isolated else None
        """Where connections of servers among each other come from; None if clients have the same address."""
        self.prefix: list[str] = []
        """What a client's command begins with."""
        self._holder: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Network:
        if self.isolated:
            _ip("link set lo up")
            self._holder = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", "unshare", "--net", "sh", "-c", "echo; exec sleep 100000"],
                stdout=subprocess.PIPE,
            )
            assert self._holder.stdout is not None
            self._holder.stdout.readline()  # it is in its namespace
            pid = self._holder.pid
            self.prefix = ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]
            _ip("link add chaos0 type veth peer name chaos1")
            _ip(f"link set chaos1 netns {pid}")
            _ip(f"addr add {SERVER_SIDE}/24 dev chaos0")
            _ip("link set chaos0 up")
            for words in ("link set lo up", f"addr add {CLIENT_SIDE}/24 dev chaos1", "link set chaos1 up"):
                _ip(words, self.prefix)
        return self

    def __exit__(self, *_: object) -> None:
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()
            assert self._holder.stdout is not None
            self._holder.stdout.close()

    def partition(self) -> None:
        """Cut the clients off. Packets get lost, and no connection is reset."""
        _ip("link set chaos0 down")

    def heal(self) -> None:
        _ip("link set chaos0 up")


def _ip(words: str, prefix: list[str] | None = None) -> None:
    subprocess.run([*(prefix or []), "ip", *words.split()], check=True, capture_output=True)
