"""Workers of one machine that tell each other when rules have changed.

Every worker looks for changes once a second, and hears of them at once where the rule database says so. SQLite and
MySQL do not. Whoever writes a rule through one worker and asks another a moment later expects it to be known there, so
the one that has written rings at the others: a byte to the socket that each has in the folder of the node. What gets
lost costs a second, as before.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Neighbours"]

NAME = "worker-{}.bell"


class Neighbours:
    """The workers of one node, as one of them sees the others."""

    def __init__(self, folder: str, worker: int) -> None:
        self._folder = folder
        self._mine = NAME.format(worker)
        path = os.path.join(folder, self._mine)
        with suppress(FileNotFoundError):
            os.unlink(path)  # of the worker that was in this place before
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(path)

    def listen(self, wake: Callable[[], None]) -> None:
        """Call this, on the running event loop, whenever another worker rings."""

        def heard() -> None:
            with suppress(BlockingIOError):
                while self._socket.recv(16):
                    pass
            wake()

        asyncio.get_running_loop().add_reader(self._socket, heard)

    def ring(self) -> None:
        """Tell the others that something has changed. Any thread may."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self._folder):
                if name.endswith(".bell") and name != self._mine:
                    with suppress(OSError):  # it is gone, or has been told more often than it could hear
                        self._socket.sendto(b"!", os.path.join(self._folder, name))

    def close(self) -> None:
        with suppress(RuntimeError):  # there is no loop any more, and then nobody listens
            asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
