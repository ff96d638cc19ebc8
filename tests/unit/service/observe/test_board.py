"""The files of the workers: read by all, grown by one each, and passed over when they are not ours."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import msgspec
import pytest

from headgate.service.observe.board import VERSION, Board, Seen
from headgate.service.observe.snapshot import FRESH_US, Measured, Snapshot, merged
from headgate.service.observe.tally import Tally

NOW = 1_700_000_000_000_000


def counted(times: int) -> Tally:
    tally = Tally()
    for _ in range(times):
        tally.decided("orders", "user", "user:1", True)
        tally.timed(0.001)
    return tally


def test_the_next_worker_in_a_place_goes_on_from_whom_the_last_had_seen(tmp_path: Path) -> None:
    first = Board(tmp_path, 1)
    assert (first.own_seen(), first.own_uses()) == (Seen(), {})
    first.publish_seen(Seen({"a": 1}, {"acme": 2}))
    first.publish_uses({"digest": 3})
    Board(tmp_path, 2).publish_uses({"digest": 2, "another": 9})
    tally = Tally()
    tally.keys.restore(Board(tmp_path, 1).own_seen().keys)
    assert tally.keys.last_us == {"a": 1}
    assert Board(tmp_path, 1).own_uses() == {"digest": 3}
    assert first.uses() == {"digest": 3, "another": 9}


def test_workers_see_each_others_numbers(tmp_path: Path) -> None:
    one, other = Board(tmp_path / "boards", 0), Board(tmp_path / "boards", 1)
    one.publish(counted(3).snapshot(NOW, {"store_errors": 1}))
    other.publish(counted(4).snapshot(NOW, {"store_errors": 2}))
    for board in (one, other):
        whole = merged(board.snapshots(), NOW)
        assert whole.decisions == [("orders", "user", 7, 0, 0)]
        assert whole.events["store_errors"] == 3
        assert whole.durations is not None
        assert sum(whole.durations.counts) == 7
        assert whole.durations.total == pytest.approx(0.007)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    tally = counted(2)
    tally.request("data", 200)
    tally.cached("rules", True)
    tally.pressed("throttled")
    tally.left("orders", "user:1", 5, NOW)
    tally.batch(10)
    tally.skewed(1)
    snapshot = tally.snapshot(NOW, {"store_errors": 1}, 7, {"Redis at a:1": 2})
    board = Board(tmp_path, 3)
    board.publish(snapshot)
    assert board.snapshots() == [snapshot]
    assert Board(tmp_path, 3).before() == snapshot
    assert Board(tmp_path, 4).before() is None


def test_an_older_snapshot_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    tally, board = counted(1), Board(tmp_path, 0)
    old = tally.snapshot(NOW, {})
    tally.decided("orders", "user", "user:1", True)
    new = tally.snapshot(NOW, {})
    board.publish(new)
    board.publish(old)
    assert board.snapshots() == [new]


def test_a_successor_never_goes_back(tmp_path: Path) -> None:
    board = Board(tmp_path, 0)
    board.publish(counted(5).snapshot(NOW, {"store_errors": 2}))
    for _ in range(3):  # three workers one after the other, each counts one more
        board = Board(tmp_path, 0)
        tally = Tally(board.before())
        tally.decided("orders", "user", "user:1", True)
        board.publish(tally.snapshot(NOW, {"store_errors": 0}))
    assert board.snapshots()[0].decisions == [("orders", "user", 8, 0, 0)]
    assert board.snapshots()[0].events["store_errors"] == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        b"not ours",
        msgspec.msgpack.encode({"version": VERSION}),
        msgspec.msgpack.encode({"version": VERSION, "snapshot": {"decisions": 5}}),
        msgspec.msgpack.encode({"version": VERSION + 1, "snapshot": Snapshot()}),
        msgspec.msgpack.encode({"version": VERSION, "snapshot": Snapshot(at_us=NOW)})[:-3],
        b"\xa2\xff\xfe",
    ],
)
def test_what_cannot_be_read_is_passed_over(tmp_path: Path, content: bytes) -> None:
    board = Board(tmp_path, 0)
    board.publish(counted(1).snapshot(NOW, {}))
    board.publish_seen(Seen({"a": 1}, {}))
    (tmp_path / "worker-1.counts").write_bytes(content)
    (tmp_path / "worker-1.seen").write_bytes(content)
    assert len(board.snapshots()) == 1
    assert board.seen() == Seen({"a": 1}, {})
    assert Board(tmp_path, 1).before() is None


def test_other_files_are_not_looked_at(tmp_path: Path) -> None:
    board = Board(tmp_path, 0)
    (tmp_path / "worker-x.counts").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "worker-7.counts").mkdir()
    assert board.snapshots() == []


def test_seen_is_merged_by_the_latest_time_and_bounded(tmp_path: Path) -> None:
    one, other = Board(tmp_path, 0), Board(tmp_path, 1)
    one.publish_seen(Seen({"a": 1, "b": 5}, {"acme": 3}))
    other.publish_seen(Seen({"a": 4, "c": 2}, {}))
    assert one.seen() == Seen({"b": 5, "a": 4, "c": 2}, {"acme": 3})
    assert list(one.seen().keys) == ["b", "a", "c"]
    assert one.seen(most=2).keys == {"b": 5, "a": 4}


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    board = Board(tmp_path, 0)
    board.publish(counted(1).snapshot(NOW, {}))
    board.publish_seen(Seen({"user:alice": 1}, {}))
    assert sorted(os.listdir(tmp_path)) == ["worker-0.counts", "worker-0.seen"], "and nothing else is left"
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_reader_always_finds_a_whole_file(tmp_path: Path) -> None:
    """Two threads write as fast as they can; a reader sees numbers that only grow, and always finds some."""
    board, tally = Board(tmp_path, 0), Tally()
    for number in range(300):
        tally.decided(f"rule-{number}", "user", "user:1", True)
    lock, stop = threading.Lock(), threading.Event()
    board.publish(tally.snapshot(NOW, {}))

    def write() -> None:
        while not stop.is_set():
            with lock:  # as on the event loop
                tally.decided("rule-0", "user", "user:1", True)
                snapshot = tally.snapshot(NOW, {})
            board.publish(snapshot)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        last = 0
        for _ in range(50):
            (snapshot,) = Board(tmp_path, 1).snapshots()
            assert len(snapshot.decisions) == 300
            assert snapshot.decisions[0][2] >= last
            last = snapshot.decisions[0][2]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_states_count_only_while_they_are_fresh() -> None:
    fresh = Snapshot(
        at_us=NOW, rules=3, breakers={"a": 1, "b": 0}, remaining=[("gold", "x", 5, 10), ("gold", "y", 1, 1)]
    )
    other = Snapshot(at_us=NOW, rules=2, breakers={"a": 0, "b": 0}, remaining=[("gold", "x", 6, 9)])
    gone = Snapshot(at_us=NOW - FRESH_US - 1, rules=9, breakers={"a": 2}, remaining=[("gold", "z", 0, 99)])
    whole = merged([fresh, other, gone], NOW)
    assert (whole.rules, whole.breakers) == (3, {"a": 1, "b": 0})
    assert whole.remaining == [("gold", "x", 5, 10), ("gold", "y", 1, 1)]


def test_buckets_of_another_version_are_not_added() -> None:
    whole = merged([Snapshot(durations=Measured([1, 2], 3.0)), Snapshot(durations=Measured([1, 2, 3], 6.0))], NOW)
    assert whole.durations == Measured([1, 2], 3.0)
