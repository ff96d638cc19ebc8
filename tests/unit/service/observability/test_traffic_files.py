"""Files of recorded traffic: they have names of people, and must not stay."""

from __future__ import annotations

import os
import time
from pathlib import Path

from crestgate.service.observability.traffic_files import MAX_AGE_SECONDS, TrafficFile, TrafficFiles

ROWS = [[1, 1, 0, None, "alice", None, None, "/", None, None, None]]


def write(folder: Path, worker: int) -> None:
    TrafficFiles(folder, worker).write(TrafficFile(time.time_ns() // 1000, 0, 0, 0), ROWS)


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_collected_files_are_removed(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (found,) = TrafficFiles(tmp_path, 0).collect(2, 0, 5.0)
    assert found.rows == ROWS
    assert os.listdir(tmp_path) == []


def test_file_that_came_too_late_is_removed_by_any_worker(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    unfinished = tmp_path / ".worker-3.traffic.new"
    unfinished.write_text("alice")
    other = tmp_path / "worker-1.counts"
    other.write_text("")
    for path in (tmp_path / "worker-1.traffic", unfinished, other):
        age(path, MAX_AGE_SECONDS + 1)
    TrafficFiles(tmp_path, 0).remove_stale()
    assert sorted(os.listdir(tmp_path)) == ["worker-1.counts", "worker-2.traffic"], "a fresh one is being waited for"


def test_worker_removes_the_files_of_its_predecessor(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (tmp_path / ".worker-1.traffic.new").write_text("alice")
    TrafficFiles(tmp_path, 1).remove_own()
    TrafficFiles(tmp_path, 1).remove_own()
    assert os.listdir(tmp_path) == []
