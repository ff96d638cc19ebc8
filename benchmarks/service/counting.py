"""What metrics cost a check, timed by themselves: this file, run as a program in the build that is measured.

There is no switch that turns them off, and in the compiled build nothing can be put in their place: its modules call
each other without asking Python. So what a check does for metrics is done here alone, many times. The calls come from
plain Python, which makes each of them dearer than in the service: the figure is an upper bound.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from time import perf_counter

from benchmarks.service.entry import USERS

__all__ = ["timed"]

CHECKS = 20_000
PUBLISHED = 20


def timed(rounds: int) -> dict[str, list[float]]:
    """Of every round: microseconds for a check by rule, for one by key, and for writing the numbers down."""
    from crestgate.service.observability.worker_metrics import WorkerMetrics
    from crestgate.service.observability.worker_snapshots import LastSeen, WorkerSnapshots

    metrics = WorkerMetrics()
    names = [f"user:{user}" for user in range(USERS)] * (CHECKS // USERS)
    now_us = time.time_ns() // 1000

    def nothing() -> None:
        for name in names:
            _ = name

    def by_rule() -> None:
        for name in names:
            started = perf_counter()
            metrics.set_time(now_us)
            metrics.count_decision("orders", "user", name, True)
            metrics.durations.observe(perf_counter() - started)
            metrics.count_request("data", 200)

    def by_key() -> None:
        for name in names:
            started = perf_counter()
            metrics.set_time(now_us)
            metrics.count_decision("default-policy", "key", name, True)
            metrics.keys.record(name, now_us)
            metrics.durations.observe(perf_counter() - started)
            metrics.count_request("data", 200)

    found: dict[str, list[float]] = {"rule": [], "key": [], "publishing": []}
    with tempfile.TemporaryDirectory(prefix="crestgate-bench-") as folder:
        worker_snapshots = WorkerSnapshots(folder, 0)

        def publish() -> None:
            for _ in range(PUBLISHED):
                worker_snapshots.publish(metrics.snapshot(now_us, {}))
                worker_snapshots.publish_seen(LastSeen(dict(metrics.keys.last_us), dict(metrics.clients.last_us)))

        for work in (by_rule, by_key, publish):
            work()
        for _ in range(rounds):
            loop = _nanoseconds(nothing)
            found["rule"].append((_nanoseconds(by_rule) - loop) / CHECKS / 1000)
            found["key"].append((_nanoseconds(by_key) - loop) / CHECKS / 1000)
            found["publishing"].append(_nanoseconds(publish) / PUBLISHED / 1000)
    return found


def _nanoseconds(work: Callable[[], None]) -> int:
    began = time.thread_time_ns()
    work()
    return time.thread_time_ns() - began


if __name__ == "__main__":
    print(json.dumps(timed(int(sys.argv[1]))))
