"""Locks between the processes of one machine: a small record file for each, changed under a short flock.

The kernel's lock on the file (flock) is held only while the record is read or changed, and while a guarded write runs;
the record names the holder. So a holder may be stopped or die anywhere, and its lease ends by the monotonic clock of
this boot, whose id is in the record too.

A record is written by one call, and always has the same length: a process that is killed leaves the old one or the
new one. Files are never removed, because another process may just have opened one.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from crestgate.databases.names import file_name
from crestgate.errors import ConfigError, StoreError
from crestgate.locks.lock import Locks, lease_lost
from crestgate.locks.port import MAX_LEASE, Lease
from crestgate.runtime.backoff import poll
from crestgate.runtime.file_locks import has_flock, try_flock, unlock

__all__ = ["FileLocks"]

LENGTH = 256
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class LockRecord:
    """The latest lease of a lock."""

    version: int
    holder: str
    expires_ns: int
    boot: str

    def holds(self, now: int, boot: str) -> bool:
        return self.boot == boot and now < self.expires_ns <= now + MAX_LEASE * 1e9

    def is_of(self, lease: Lease) -> bool:
        return (self.version, self.holder) == (lease.version, lease.holder)


_FREE = LockRecord(0, "", 0, "")


class FileLocks(Locks[None]):
    """Locks in a folder. `timeout` is how many seconds to wait while another process has a file locked."""

    def __init__(self, folder: str, *, prefix: str, timeout: float) -> None:
        if not has_flock():
            raise ConfigError(
                "file:// locks need flock, which this system does not have; use sqlite:///file or redis:// here"
            )
        super().__init__(f"lock files in {folder}")
        self.folder = folder
        self.prefix = prefix
        self.timeout = timeout
        try:
            _make_folder(folder)
            self.boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        except OSError as error:
            raise StoreError(f"{self.address}: {error.strerror}") from None

    def attempt(self, name: str, holder: str, seconds: float) -> int | None:
        with self._file(name, 0.0) as file:
            if file is None:
                return None
            record = _read(file, self._path(name))
            now = time.monotonic_ns()
            if record.holds(now, self.boot):
                return None
            version = max(record.version + 1, time.time_ns() // 1000)
            _write(file, self._path(name), LockRecord(version, holder, now + int(seconds * 1e9), self.boot))
            return version

    def release(self, lease: Lease) -> None:
        with self._file(lease.name, self.timeout) as file:
            if file is None:
                raise self._busy(lease.name)
            path = self._path(lease.name)
            if _read(file, path).is_of(lease):
                _write(file, path, LockRecord(lease.version, lease.holder, 0, self.boot))

    @contextmanager
    def guarded(self, lease: Lease) -> Iterator[None]:
        """The lock cannot be taken while the block runs. A process that is stopped inside it blocks all others."""
        self.check_open()
        with self._file(lease.name, self.timeout) as file:
            if file is None:
                raise self._busy(lease.name)
            if not _read(file, self._path(lease.name)).is_of(lease):
                raise lease_lost(lease)
            yield

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, file_name(self.prefix, name))

    @contextmanager
    def _file(self, name: str, timeout: float) -> Iterator[int | None]:
        """The file of a lock, locked; None if another process keeps it locked for `timeout` seconds."""
        path = self._path(name)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreError(f"{self.address}: {error}") from None
        process = os.getpid()
        try:
            yield poll(lambda: _try_flock(file, path), timeout)
        finally:
            if os.getpid() == process:
                unlock(file)  # a child forked meanwhile keeps the file open
            os.close(file)

    def _busy(self, name: str) -> StoreError:
        return StoreError(f"{self._path(name)}: another process kept this file locked for {self.timeout:g} s")


def _make_folder(folder: str) -> None:
    """Create one folder at most: a missing parent is a mistyped path."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder.rstrip("/"))
    if not os.path.isdir(parent):
        raise FileNotFoundError(errno.ENOENT, f"the folder {parent} does not exist and is not created")
    try:
        os.mkdir(folder, mode=0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, "this is not a folder") from None


def _try_flock(file: int, path: str) -> int | None:
    try:
        return file if try_flock(file) else None
    except OSError as error:
        raise StoreError(f"{path}: {error}") from None


def _read(file: int, path: str) -> LockRecord:
    try:
        data = os.pread(file, LENGTH, 0).strip(b" \n\0")
        return LockRecord(**json.loads(data)) if data else _FREE  # after a power failure there may be zeros
    except (OSError, ValueError, TypeError):
        raise StoreError(f"{path}: this is not a lock record; remove the file if nothing else needs it") from None


def _write(file: int, path: str, record: LockRecord) -> None:
    try:
        os.pwrite(file, json.dumps(asdict(record)).encode().ljust(LENGTH - 1) + b"\n", 0)
    except OSError as error:
        raise StoreError(f"{path}: {error}") from None
