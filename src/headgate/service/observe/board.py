"""Where the workers of one node put their numbers for each other: one file a worker, in a folder of the node.

A scrape of /metrics reaches one worker and must tell of all. So each writes its own numbers about every second, and the
one that is asked writes its own first and then adds up the files, and nothing but the files. Whichever worker is asked
next, no number is ever smaller than before: a file only ever grows, and a worker that is replaced goes on from it.

A file is replaced as a whole, so a reader sees an old or a new one, never half of one. It is not synced to the disk:
after a crash of the machine the numbers begin anew, as counters may. What another program left in the folder, or
another version wrote, is passed over.

Who was seen lately is in a second file, because it is larger and is not needed as often, and when limits of clients
were last used in a third. All can be read by their owner only: keys are names of people.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from threading import Lock
from typing import TypeVar

import msgspec

from headgate.service.observe.recent import MOST_NAMES, latest
from headgate.service.observe.snapshot import Snapshot

__all__ = ["Board", "Seen"]

VERSION = 1
_FILE = re.compile(r"worker-(\d{1,6})\.(counts|seen|uses)")
T = TypeVar("T")


class Seen(msgspec.Struct, frozen=True):
    """Who was seen lately, and when, in microseconds since the epoch."""

    keys: dict[str, int] = {}
    clients: dict[str, int] = {}


class _Page(msgspec.Struct):
    """A file of counts."""

    version: int
    snapshot: Snapshot


class Board:
    """The files of all workers in one folder, of which one is this worker's. Threads may call it."""

    def __init__(self, folder: str | os.PathLike[str], worker: int) -> None:
        self.worker = worker
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = Lock()
        self._published = -1

    def before(self) -> Snapshot | None:
        """What the worker in this place wrote last, for its successor to go on from."""
        return _read_counts(self._path(self.worker, "counts"))

    def publish(self, snapshot: Snapshot) -> None:
        """Write this worker's numbers. A snapshot older than the one written last is left: another thread was first."""
        content = msgspec.msgpack.encode(_Page(VERSION, snapshot))
        with self._lock:
            if snapshot.sequence > self._published:
                self._replace("counts", content)
                self._published = snapshot.sequence

    def publish_seen(self, seen: Seen) -> None:
        """Write whom this worker has seen."""
        content = msgspec.msgpack.encode(seen)
        with self._lock:
            self._replace("seen", content)

    def publish_uses(self, uses: dict[str, int]) -> None:
        """Write when this worker used counters last, by their digest."""
        content = msgspec.msgpack.encode(uses)
        with self._lock:
            self._replace("uses", content)

    def own_seen(self) -> Seen:
        """Whom the worker in this place had seen, for its successor to go on from."""
        return _read(self._path(self.worker, "seen"), Seen) or Seen()

    def own_uses(self) -> dict[str, int]:
        """The same of the counters that it had used."""
        return _read(self._path(self.worker, "uses"), dict[str, int]) or {}

    def uses(self) -> dict[str, int]:
        """When any worker used a counter last, by its digest."""
        uses: dict[str, int] = {}
        for worker in self._workers("uses"):
            _later(uses, _read(self._path(worker, "uses"), dict[str, int]) or {})
        return uses

    def snapshots(self) -> list[Snapshot]:
        """The numbers of all workers, in their order."""
        found = [_read_counts(self._path(worker, "counts")) for worker in self._workers("counts")]
        return [snapshot for snapshot in found if snapshot is not None]

    def seen(self, most: int = MOST_NAMES) -> Seen:
        """Whom all workers have seen lately, the latest first."""
        keys: dict[str, int] = {}
        clients: dict[str, int] = {}
        for worker in self._workers("seen"):
            one = _read(self._path(worker, "seen"), Seen)
            if one is not None:
                _later(keys, one.keys)
                _later(clients, one.clients)
        return Seen(dict(latest(keys, most)), dict(latest(clients, most)))

    def _workers(self, kind: str) -> list[int]:
        matches = [_FILE.fullmatch(name) for name in os.listdir(self._folder)]
        return sorted(int(match[1]) for match in matches if match is not None and match[2] == kind)

    def _path(self, worker: int, kind: str) -> Path:
        return self._folder / f"worker-{worker}.{kind}"

    def _replace(self, kind: str, content: bytes) -> None:
        path = self._path(self.worker, kind)
        new = path.with_name(f".{path.name}.new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        os.replace(new, path)


def _later(known: dict[str, int], more: dict[str, int]) -> None:
    for name, last_us in more.items():
        if last_us > known.get(name, -1):
            known[name] = last_us


def _read_counts(path: Path) -> Snapshot | None:
    page = _read(path, _Page)
    return page.snapshot if page is not None and page.version == VERSION else None


def _read(path: Path, kind: type[T]) -> T | None:
    """What is in a file; None where there is nothing that can be read."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
