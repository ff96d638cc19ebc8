"""File locks: clocks, boot ids, foreign files."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path
from typing import cast

import pytest

from crestgate.errors import LeaseLostError, StoreError
from crestgate.locks import file as file_module
from crestgate.locks import open_locks
from crestgate.locks.file import LENGTH, FileLocks
from stalls import Stalls

NAME = "client:42"


class Time:
    """Two clocks that a test sets: monotonic since boot, and wall time."""

    def __init__(self) -> None:
        self.monotonic, self.wall = 5_000.0, 1_700_000_000.0

    def monotonic_ns(self) -> int:
        return int(self.monotonic * 1e9)

    def time_ns(self) -> int:
        return int(self.wall * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(file_module, "time", clock)
    return clock


@pytest.fixture
def locks(tmp_path: Path) -> FileLocks:
    return cast(FileLocks, open_locks(f"file://{tmp_path}/locks?timeout_ms=20"))


@pytest.fixture
def file(locks: FileLocks) -> Path:
    return Path(locks.folder, "cg:client%3A42.lock")


def test_lease_uses_the_monotonic_clock(locks: FileLocks, clock: Time) -> None:
    first = locks.attempt(NAME, "first", 10.0)
    for wall in (0.0, 1e9, 9e9):
        clock.wall = wall
        assert locks.attempt(NAME, "second", 10.0) is None
    clock.monotonic += 9.999
    assert locks.attempt(NAME, "second", 10.0) is None
    clock.monotonic += 0.001
    second = locks.attempt(NAME, "second", 10.0)
    assert first is not None
    assert second is not None
    assert second > first


def test_forked_child_holds_no_lock(locks: FileLocks) -> None:
    with locks.hold(NAME, lease=10) as lease, locks.guarded(lease):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        assert locks.attempt(NAME, "next", 10.0) is not None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_forked_child_does_not_release_the_lock_of_its_parent(locks: FileLocks) -> None:
    block = locks._file(NAME, 0.0)
    assert block.__enter__() is not None
    child = os.fork()
    if child == 0:
        block.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(child, 0)
    assert locks.attempt(NAME, "next", 10.0) is None
    block.__exit__(None, None, None)
    assert locks.attempt(NAME, "next", 10.0) is not None


def test_lease_ends_with_the_boot(locks: FileLocks, clock: Time) -> None:
    assert locks.attempt(NAME, "first", 3600.0) is not None
    locks.boot = "another"
    assert locks.attempt(NAME, "second", 10.0) is not None


def test_missing_boot_id(locks: FileLocks, clock: Time) -> None:
    """The clock restarts; a remaining time above the maximum lease is ignored."""
    locks.boot = ""
    assert locks.attempt(NAME, "first", 3600.0) is not None
    clock.monotonic = 60.0
    assert locks.attempt(NAME, "second", 10.0) is not None


def test_versions_grow_after_clock_steps_and_lost_files(locks: FileLocks, clock: Time, file: Path) -> None:
    versions = []
    for wall in (1_700_000_000.0, 5.0, 1_700_000_001.0):
        clock.wall = wall
        with locks.hold(NAME) as lease:
            versions.append(lease.version)
    file.unlink()
    clock.wall += 1
    with locks.hold(NAME) as lease:
        versions.append(lease.version)
    assert versions == [1_700_000_000_000_000, 1_700_000_000_000_001, 1_700_000_001_000_000, 1_700_000_002_000_000]


def test_lease_of_a_file_that_was_removed_is_lost(locks: FileLocks, file: Path) -> None:
    with locks.hold(NAME) as lease:
        file.unlink()
        with pytest.raises(LeaseLostError), locks.guarded(lease):
            pytest.fail("must not run")


def test_records_always_have_the_same_length(locks: FileLocks, file: Path) -> None:
    with locks.hold(NAME):
        assert (file.stat().st_size, file.stat().st_mode & 0o777) == (LENGTH, 0o600)
        assert file.read_text().endswith(" \n")
    assert file.stat().st_size == LENGTH


@pytest.mark.parametrize("found", [b"", b"\0" * LENGTH])
def test_empty_file_is_a_free_lock(locks: FileLocks, file: Path, found: bytes) -> None:
    file.write_bytes(found)
    with locks.hold(NAME, wait=0):
        pass


@pytest.mark.parametrize("found", [b"something", b"{}", b"[1]", b'{"version": 1}', b"\xff" * 300])
def test_foreign_file_is_refused(locks: FileLocks, file: Path, found: bytes) -> None:
    file.write_bytes(found)
    with pytest.raises(StoreError, match=r"client%3A42.lock: this is not a lock record"), locks.hold(NAME):
        pass
    assert file.read_bytes() == found


def test_symbolic_link_is_refused(locks: FileLocks, file: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"")
    file.symlink_to(tmp_path / "target")
    with pytest.raises(StoreError, match="lock files in "), locks.hold(NAME):
        pass


def test_file_locked_by_another_process(locks: FileLocks, file: Path, stalls: Stalls) -> None:
    with locks.hold(NAME) as lease:
        other = os.open(file, os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another process kept this file locked for"), locks.guarded(lease):
            pytest.fail("must not run")
        with pytest.raises(TimeoutError), locks.hold(NAME, wait=0):
            pytest.fail("must not run")
        os.close(other)
        with locks.guarded(lease):
            started = time.monotonic()
            with pytest.raises(TimeoutError), locks.hold(NAME, wait=0):
                pytest.fail("nobody takes it while a guarded write runs")
            assert stalls.without(started, time.monotonic()) < 1
