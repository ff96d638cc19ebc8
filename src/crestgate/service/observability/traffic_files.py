"""Files by which the workers of a node pass on recorded traffic, on request: one per worker, in its directory.

A simulation reaches one worker and is about all. So that worker notifies the others, each writes its records to a file,
and the first reads and removes them. Only the owner can read them: they have names of people, and digests of API keys.
A worker that writes too late, or a reader that dies, leaves files behind: a worker removes those of its predecessor
when it starts, and later any that nobody has read for a while.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

__all__ = ["MAX_AGE_SECONDS", "TrafficFile", "TrafficFiles"]

SLICE = 500
"""Rows that are encoded at a time: the event loop waits meanwhile."""
POLL_SECONDS = 0.02
MAX_AGE_SECONDS = 30.0
"""Nobody waits for so long for a file."""
_FILE = re.compile(r"worker-\d{1,6}\.traffic|\.worker-\d{1,6}\.traffic\.new")

_WRITING = Lock()
"""Two collections may notify a worker at the same time."""


class TrafficFile(msgspec.Struct, frozen=True):
    """The records of one worker."""

    at_us: int
    """When it was written."""
    bits: int
    since_us: int
    skipped: int
    rows: list[Any] = []


class TrafficFiles:
    """The files of all workers in one directory."""

    def __init__(self, folder: str | os.PathLike[str], worker: int) -> None:
        self._folder = Path(folder)
        self._worker = worker

    def write(self, header: TrafficFile, rows: Sequence[Any]) -> None:
        """Write the records of this worker, in a thread; others that are notified meanwhile wait."""
        path = self._path(self._worker)
        new = _new(path)
        with _WRITING, open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(header) + b"\n")
            for start in range(0, len(rows), SLICE):
                file.write(msgspec.json.encode(rows[start : start + SLICE]) + b"\n")
                time.sleep(0)  # lets the event loop run
            file.flush()
            os.replace(new, path)

    def collect(self, workers: int, since_us: int, timeout: float) -> list[TrafficFile]:
        """The records that the other workers wrote since then. Waits for all of `workers`, and no longer than
        `timeout` seconds for those that are busy."""
        found: dict[int, TrafficFile] = {}
        others = [number for number in range(workers) if number != self._worker]
        deadline = time.monotonic() + timeout
        while True:
            for number in others:
                if number not in found:
                    file = self._read(number, since_us)
                    if file is not None:
                        found[number] = file
                        with suppress(FileNotFoundError):
                            os.unlink(self._path(number))
            if len(found) == len(others) or time.monotonic() >= deadline:
                return [found[number] for number in sorted(found)]
            time.sleep(POLL_SECONDS)

    def remove_own(self) -> None:
        """Remove what a predecessor of this worker left behind."""
        path = self._path(self._worker)
        for one in (path, _new(path)):
            with suppress(FileNotFoundError):
                os.unlink(one)

    def remove_stale(self, max_age: float = MAX_AGE_SECONDS) -> None:
        """Remove files of any worker that nobody has read for so many seconds."""
        oldest = time.time() - max_age
        for name in os.listdir(self._folder):
            if _FILE.fullmatch(name):
                path = self._folder / name
                with suppress(FileNotFoundError):  # another worker was first
                    if os.stat(path).st_mtime <= oldest:
                        os.unlink(path)

    def _read(self, worker: int, since_us: int) -> TrafficFile | None:
        """None if there is no file yet, or only that of an earlier collection, whose rows are not read."""
        try:
            with open(self._path(worker), "rb") as file:
                header = msgspec.json.decode(file.readline(), type=TrafficFile)
                if header.at_us < since_us:
                    return None
                rows: list[Any] = []
                for line in file:
                    rows += msgspec.json.decode(line)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return TrafficFile(header.at_us, header.bits, header.since_us, header.skipped, rows)

    def _path(self, worker: int) -> Path:
        return self._folder / f"worker-{worker}.traffic"


def _new(path: Path) -> Path:
    """The file while it is being written."""
    return path.with_name(f".{path.name}.new")
