"""Files through which the workers of one node share their metrics: one per worker, in a directory of the node.

A scrape of /metrics reaches one worker and must report all. So each worker publishes its own metrics about every
second, and the one that is scraped publishes first and then adds up the files, and nothing but the files. Whichever
worker is scraped next, no counter ever decreases: a file only grows, and a worker that is replaced continues from it.

A file is replaced atomically, so a reader sees an old or a new one, never a partial one. It is not synced: after a
machine crash counters restart from 0. Foreign files and files of another version are ignored.

Recently seen names are in a second file, because it is larger and read less often, and the last uses of client limits
in a third. Only the owner can read them: keys are names of people.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from threading import Lock
from typing import TypeVar

import msgspec

from crestgate.service.observability.recent_names import MAX_NAMES, latest
from crestgate.service.observability.snapshot import Snapshot

__all__ = ["LastSeen", "WorkerSnapshots"]

VERSION = 3
_FILE = re.compile(r"worker-(\d{1,6})\.(counts|seen|uses)")
T = TypeVar("T")


class LastSeen(msgspec.Struct, frozen=True):
    """Recently seen names, with the time of their last request in microseconds since the epoch."""

    keys: dict[str, int] = {}
    clients: dict[str, int] = {}


class _MetricsFile(msgspec.Struct):
    """Content of a `.counts` file."""

    version: int
    snapshot: Snapshot


class WorkerSnapshots:
    """The files of all workers in one directory. Writes those of one worker. Thread-safe."""

    def __init__(self, folder: str | os.PathLike[str], worker: int) -> None:
        self.worker = worker
        self.folder = folder
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = Lock()
        self._published = -1

    def previous(self) -> Snapshot | None:
        """The last snapshot of the worker with this number, for its successor to continue from."""
        return _read_counts(self._path(self.worker, "counts"))

    def publish(self, snapshot: Snapshot) -> None:
        """Write the metrics of this worker. A snapshot older than the last is ignored: another thread was first."""
        content = msgspec.msgpack.encode(_MetricsFile(VERSION, snapshot))
        with self._lock:
            if snapshot.sequence > self._published:
                self._replace("counts", content)
                self._published = snapshot.sequence

    def publish_seen(self, seen: LastSeen) -> None:
        """Write the names that this worker has seen."""
        content = msgspec.msgpack.encode(seen)
        with self._lock:
            self._replace("seen", content)

    def publish_uses(self, uses: dict[str, int]) -> None:
        """Write when this worker used counters last, by their digest."""
        content = msgspec.msgpack.encode(uses)
        with self._lock:
            self._replace("uses", content)

    def own_seen(self) -> LastSeen:
        """The names that the worker with this number has seen, for its successor to continue from."""
        return _read(self._path(self.worker, "seen"), LastSeen) or LastSeen()

    def own_uses(self) -> dict[str, int]:
        """The counters that the worker with this number has used."""
        return _read(self._path(self.worker, "uses"), dict[str, int]) or {}

    def uses(self) -> dict[str, int]:
        """When any worker used a counter last, by its digest."""
        uses: dict[str, int] = {}
        for worker in self._workers("uses"):
            _keep_latest(uses, _read(self._path(worker, "uses"), dict[str, int]) or {})
        return uses

    def snapshots(self) -> list[Snapshot]:
        """The metrics of all workers, ordered by their number."""
        return list(self.by_worker().values())

    def by_worker(self) -> dict[int, Snapshot]:
        """The metrics of all workers, by their number."""
        snapshots = {worker: _read_counts(self._path(worker, "counts")) for worker in self._workers("counts")}
        return {worker: snapshot for worker, snapshot in snapshots.items() if snapshot is not None}

    def seen(self, max_names: int = MAX_NAMES) -> LastSeen:
        """The names that all workers have seen, latest first."""
        keys: dict[str, int] = {}
        clients: dict[str, int] = {}
        for worker in self._workers("seen"):
            one = _read(self._path(worker, "seen"), LastSeen)
            if one is not None:
                _keep_latest(keys, one.keys)
                _keep_latest(clients, one.clients)
        return LastSeen(dict(latest(keys, max_names)), dict(latest(clients, max_names)))

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


def _keep_latest(known: dict[str, int], more: dict[str, int]) -> None:
    for name, last_us in more.items():
        if last_us > known.get(name, -1):
            known[name] = last_us


def _read_counts(path: Path) -> Snapshot | None:
    file = _read(path, _MetricsFile)
    return file.snapshot if file is not None and file.version == VERSION else None


def _read(path: Path, kind: type[T]) -> T | None:
    """The decoded content of a file; None if it cannot be read."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
