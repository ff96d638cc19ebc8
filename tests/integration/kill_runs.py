"""Stores and child processes of the runs that kill at random: `in_flight_kills` and `reservation_kills`.

A child appends records to a journal of its own, each with one `write`, so a killed child loses none of them. Times are
`time.monotonic_ns`, which all processes of a machine share.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from integration.child_process import ChildProcess
from servers.mariadb import MariaDB
from servers.postgres import Postgres
from servers.redis import RedisCluster, RedisSentinels, RedisServer

__all__ = ["PROCESSES", "STORES", "BinaryJournal", "Victims", "opened_store", "read_records", "store_url"]

PROCESSES = 8
STORES = ("shared", "sqlite", "redis_server", "redis_cluster", "redis_sentinels", "mariadb", "postgres")
"""The servers are named as the fixtures of the tests."""
SERVERS: dict[str, Callable[[], Any]] = {
    "redis_server": RedisServer,
    "redis_cluster": RedisCluster,
    "redis_sentinels": RedisSentinels,
    "mariadb": MariaDB,
    "postgres": Postgres,
}


def store_url(kind: str, folder: Path, server: str | None) -> str:
    """A store with a prefix of its own; `server` is the URL of its server, if it has one.

    The timeout is long, because the processes share two cores. A pool of 4 keeps 8 processes, and the connections of
    those that were killed a moment ago, below what PostgreSQL allows.
    """
    options = f"prefix={uuid4().hex[:8]}&timeout_ms=10000"
    if kind == "shared":
        return f"shared://{folder}/counters?{options}"
    if kind == "sqlite":
        return f"sqlite:///{folder}/counters.db?{options}"
    pool = "&pool_size=4" if kind in ("mariadb", "postgres") else ""
    return f"{server}?{options}{pool}"


@contextmanager
def opened_store(kind: str) -> Iterator[tuple[str, Path]]:
    """The URL of a store, and a folder for the journals, for a run by hand."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        server = stack.enter_context(SERVERS[kind]()).url if kind in SERVERS else None
        yield store_url(kind, folder, server), folder


class BinaryJournal:
    """Appends records of one form to a file."""

    def __init__(self, path: str, form: Struct) -> None:
        self._form = form
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *values: object) -> None:
        os.write(self._file, self._form.pack(*values))


def read_records(path: Path, form: Struct) -> list[tuple[Any, ...]]:
    """All records of a journal; a last one that is cut off does not count."""
    data = path.read_bytes() if path.exists() else b""
    return list(form.iter_unpack(data[: len(data) - len(data) % form.size]))


@dataclass
class Victims:
    """Keeps as many children of one program running as asked, and kills one of them at random now and then."""

    program: str
    folder: Path
    arguments: dict[str, object]
    rolls: random.Random
    kills: int = 0
    deaths: int = 0
    """Children that have killed themselves."""
    ends: dict[Path, int] = field(default_factory=dict)
    """Of each journal: when its process ran for the last time."""
    _running: list[tuple[ChildProcess, Path]] = field(default_factory=list)
    _started: int = 0

    def run(self, seconds: float, pause: float) -> None:
        """For so many seconds after all have started; `pause` seconds between kills, on average. Then kill all."""
        try:
            for _ in range(PROCESSES):
                self._start()
            for child, _ in self._running:
                assert child.receive() == "ready"
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(2 * pause * self.rolls.random())
                for position in self._dead() or [self.rolls.randrange(len(self._running))]:
                    self._end(position)
                    self._start()
        finally:
            while self._running:
                self._end(0)

    def _start(self) -> None:
        path = self.folder / f"journal-{self._started}"
        child = ChildProcess(self.program, path=str(path), seed=self._started, **self.arguments)
        self._running.append((child, path))
        self._started += 1

    def _dead(self) -> list[int]:
        """The positions of children that have ended, the last one first."""
        ended = [position for position, (child, _) in enumerate(self._running) if child.process.poll() is not None]
        return ended[::-1]

    def _end(self, position: int) -> None:
        child, path = self._running.pop(position)
        if child.process.poll() is None:
            self.kills += 1
        else:
            assert child.process.returncode == -9, f"{self.program} failed"
            self.deaths += 1
        self.ends[path] = time.monotonic_ns()
        child.__exit__(None, None, None)
