"""Waiting for files to become ready: `poll` where the system has it, else `select`, which Windows has for sockets.

poll is preferred because select is limited to 1,024 descriptors.
"""

from __future__ import annotations

import select
from typing import Protocol

__all__ = ["POLLIN", "POLLOUT", "create_poll"]

POLLIN: int = getattr(select, "POLLIN", 1)
POLLOUT: int = getattr(select, "POLLOUT", 4)


class Poll(Protocol):
    """The part of `select.poll` that is used."""

    def register(self, file: int, events: int, /) -> None: ...

    def poll(self, milliseconds: float, /) -> list[tuple[int, int]]: ...


class SelectPoll:
    """The same with `select`."""

    def __init__(self) -> None:
        self._events: dict[int, int] = {}

    def register(self, file: int, events: int, /) -> None:
        self._events[file] = events

    def poll(self, milliseconds: float, /) -> list[tuple[int, int]]:
        reading = [file for file, events in self._events.items() if events & POLLIN]
        writing = [file for file, events in self._events.items() if events & POLLOUT]
        readable, writable, _ = select.select(reading, writing, [], milliseconds / 1000)
        ready = dict.fromkeys(readable, POLLIN)
        for file in writable:
            ready[file] = ready.get(file, 0) | POLLOUT
        return list(ready.items())


def create_poll() -> Poll:
    return select.poll() if hasattr(select, "poll") else SelectPoll()
