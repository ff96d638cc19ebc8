"""Snapshot files of workers: read by all, written by one each, and ignored if invalid."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import msgspec
import pytest

from crestgate.service.observability.metrics import BY_NAME
from crestgate.service.observability.snapshot import FRESH_US, HistogramCounts, Snapshot, merge_snapshots
from crestgate.service.observability.worker_metrics import WorkerMetrics
from crestgate.service.observability.worker_snapshots import VERSION, LastSeen, WorkerSnapshots
from unit.service.snapshots import decision_counts

NOW = 1_700_000_000_000_000
Gauges = dict[str, dict[tuple[str, ...], tuple[int, int]]]


def counted(times: int) -> WorkerMetrics:
    metrics = WorkerMetrics()
    for _ in range(times):
        metrics.count_decision("orders", "user", "user:1", True)
        metrics.durations.observe(0.001)
    return metrics


def test_successor_continues_from_the_names_seen(tmp_path: Path) -> None:
    first = WorkerSnapshots(tmp_path, 1)
    assert (first.own_seen(), first.own_uses()) == (LastSeen(), {})
    first.publish_seen(LastSeen({"a": 1}, {"acme": 2}))
    first.publish_uses({"digest": 3})
    WorkerSnapshots(tmp_path, 2).publish_uses({"digest": 2, "another": 9})
    metrics = WorkerMetrics()
    metrics.keys.restore(WorkerSnapshots(tmp_path, 1).own_seen().keys)
    assert metrics.keys.last_us == {"a": 1}
    assert WorkerSnapshots(tmp_path, 1).own_uses() == {"digest": 3}
    assert first.uses() == {"digest": 3, "another": 9}


def test_workers_read_each_others_metrics(tmp_path: Path) -> None:
    one, other = WorkerSnapshots(tmp_path / "snapshots", 0), WorkerSnapshots(tmp_path / "snapshots", 1)
    one.publish(counted(3).snapshot(NOW, {"store_errors": 1}))
    other.publish(counted(4).snapshot(NOW, {"store_errors": 2}))
    for worker_snapshots in (one, other):
        whole = merge_snapshots(worker_snapshots.snapshots(), NOW)
        assert decision_counts(whole) == {("orders", "user"): (7, 0, 0)}
        assert whole.counter("store_errors") == 3
        durations = whole.histograms["check_duration_seconds"]
        assert sum(durations.counts) == 7
        assert durations.total == pytest.approx(0.007)


def test_snapshot_survives_a_round_trip(tmp_path: Path) -> None:
    metrics = counted(2)
    metrics.count_request("data", 200)
    metrics.count_cache_lookup("rules", True)
    metrics.count_pressure("throttled")
    metrics.set_remaining("orders", "user:1", 5, NOW)
    metrics.observe_batch(10)
    metrics.observe_clock_skew(1)
    snapshot = metrics.snapshot(NOW, {"store_errors": 1}, {"rules": {(): 7}, "breaker_state": {("Redis at a:1",): 2}})
    worker_snapshots = WorkerSnapshots(tmp_path, 3)
    worker_snapshots.publish(snapshot)
    assert worker_snapshots.snapshots() == [snapshot]
    assert WorkerSnapshots(tmp_path, 3).previous() == snapshot
    assert WorkerSnapshots(tmp_path, 4).previous() is None


def test_older_snapshot_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    metrics, worker_snapshots = counted(1), WorkerSnapshots(tmp_path, 0)
    old = metrics.snapshot(NOW, {})
    metrics.count_decision("orders", "user", "user:1", True)
    new = metrics.snapshot(NOW, {})
    worker_snapshots.publish(new)
    worker_snapshots.publish(old)
    assert worker_snapshots.snapshots() == [new]


def test_counters_never_decrease_across_successors(tmp_path: Path) -> None:
    worker_snapshots = WorkerSnapshots(tmp_path, 0)
    worker_snapshots.publish(counted(5).snapshot(NOW, {"store_errors": 2}))
    for _ in range(3):  # three workers in succession, each counts one more
        worker_snapshots = WorkerSnapshots(tmp_path, 0)
        metrics = WorkerMetrics(worker_snapshots.previous())
        metrics.count_decision("orders", "user", "user:1", True)
        worker_snapshots.publish(metrics.snapshot(NOW, {"store_errors": 0}))
    assert decision_counts(worker_snapshots.snapshots()[0]) == {("orders", "user"): (8, 0, 0)}
    assert worker_snapshots.snapshots()[0].counter("store_errors") == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        b"not ours",
        msgspec.msgpack.encode({"version": VERSION}),
        msgspec.msgpack.encode({"version": VERSION, "snapshot": {"counters": 5}}),
        msgspec.msgpack.encode({"version": VERSION + 1, "snapshot": Snapshot()}),
        msgspec.msgpack.encode({"version": VERSION, "snapshot": Snapshot(at_us=NOW)})[:-3],
        b"\xa2\xff\xfe",
    ],
)
def test_unreadable_files_are_ignored(tmp_path: Path, content: bytes) -> None:
    worker_snapshots = WorkerSnapshots(tmp_path, 0)
    worker_snapshots.publish(counted(1).snapshot(NOW, {}))
    worker_snapshots.publish_seen(LastSeen({"a": 1}, {}))
    (tmp_path / "worker-1.counts").write_bytes(content)
    (tmp_path / "worker-1.seen").write_bytes(content)
    assert len(worker_snapshots.snapshots()) == 1
    assert worker_snapshots.seen() == LastSeen({"a": 1}, {})
    assert WorkerSnapshots(tmp_path, 1).previous() is None


def test_other_files_are_ignored(tmp_path: Path) -> None:
    worker_snapshots = WorkerSnapshots(tmp_path, 0)
    (tmp_path / "worker-x.counts").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "worker-7.counts").mkdir()
    assert worker_snapshots.snapshots() == []


def test_seen_is_merged_by_the_latest_time_and_bounded(tmp_path: Path) -> None:
    one, other = WorkerSnapshots(tmp_path, 0), WorkerSnapshots(tmp_path, 1)
    one.publish_seen(LastSeen({"a": 1, "b": 5}, {"acme": 3}))
    other.publish_seen(LastSeen({"a": 4, "c": 2}, {}))
    assert one.seen() == LastSeen({"b": 5, "a": 4, "c": 2}, {"acme": 3})
    assert list(one.seen().keys) == ["b", "a", "c"]
    assert one.seen(max_names=2).keys == {"b": 5, "a": 4}


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    worker_snapshots = WorkerSnapshots(tmp_path, 0)
    worker_snapshots.publish(counted(1).snapshot(NOW, {}))
    worker_snapshots.publish_seen(LastSeen({"user:alice": 1}, {}))
    assert sorted(os.listdir(tmp_path)) == ["worker-0.counts", "worker-0.seen"], "no temporary files remain"
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_reader_never_sees_a_partial_file(tmp_path: Path) -> None:
    """Two threads write continuously; a reader always finds counters, and they only grow."""
    worker_snapshots, metrics = WorkerSnapshots(tmp_path, 0), WorkerMetrics()
    for number in range(300):
        metrics.count_decision(f"rule-{number}", "user", "user:1", True)
    lock, stop = threading.Lock(), threading.Event()
    worker_snapshots.publish(metrics.snapshot(NOW, {}))

    def write() -> None:
        while not stop.is_set():
            with lock:  # as on the event loop
                metrics.count_decision("rule-0", "user", "user:1", True)
                snapshot = metrics.snapshot(NOW, {})
            worker_snapshots.publish(snapshot)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        last = 0
        for _ in range(50):
            (snapshot,) = WorkerSnapshots(tmp_path, 1).snapshots()
            allowed = snapshot.counters["allowed"]
            assert len(allowed) == 300
            assert allowed["rule-0", "user"] >= last
            last = allowed["rule-0", "user"]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def states(rules: int, breakers: dict[str, int], remaining: dict[str, tuple[int, int]]) -> Gauges:
    """The gauges of a worker; `remaining` maps a key to its quota and the time it was last seen."""
    return {
        "rules": {(): (rules, NOW)},
        "breaker_state": {(server,): (state, NOW) for server, state in breakers.items()},
        "tokens_remaining": {("gold", key): value for key, value in remaining.items()},
    }


def test_gauges_count_only_while_they_are_fresh() -> None:
    fresh = Snapshot(at_us=NOW, gauges=states(3, {"a": 1, "b": 0}, {"x": (5, 10), "y": (1, 1)}))
    other = Snapshot(at_us=NOW, gauges=states(2, {"a": 0, "b": 0}, {"x": (6, 9)}))
    stale = Snapshot(at_us=NOW - FRESH_US - 1, gauges=states(9, {"a": 2}, {"z": (0, 99)}))
    merged = merge_snapshots([fresh, other, stale], NOW)
    assert merged.gauges == states(3, {"a": 1, "b": 0}, {"x": (5, 10), "y": (1, 1)})


def test_remaining_quotas_of_all_workers_are_bounded() -> None:
    max_series = BY_NAME["tokens_remaining"].max_series
    assert max_series is not None
    keys = [f"key-{number:05}" for number in range(max_series * 2)]
    half = len(keys) // 2
    snapshots = [
        Snapshot(at_us=NOW, gauges={"tokens_remaining": {("gold", key): (1, NOW) for key in part}})
        for part in (keys[:half], keys[half:])
    ]
    assert len(merge_snapshots(snapshots, NOW).gauges["tokens_remaining"]) == max_series


def test_histograms_with_other_buckets_are_not_added() -> None:
    ours, theirs = HistogramCounts([1, 2], 3.0), HistogramCounts([1, 2, 3], 6.0)
    whole = merge_snapshots(
        [Snapshot(histograms={"batch_size": ours}), Snapshot(histograms={"batch_size": theirs})], NOW
    )
    assert whole.histograms == {"batch_size": ours}
