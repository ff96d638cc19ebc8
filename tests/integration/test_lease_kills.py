"""Processes that decide from leases and are killed at random: never over the limit, and nothing is lost for longer than
a window, or than a bucket takes to refill."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from crestgate import Limiter
from integration.kill_runs import PROCESSES, Victims, read_records, store_url
from integration.lease_programs import BUCKET, RECORD, WINDOW

SECONDS, PAUSE = 3.0, 0.3
SLACK = 20_000_000
"""Nanoseconds by which the store's clock may differ from this process's."""
PATIENCE = 60.0
REFILLS_IN = {WINDOW: WINDOW.period, BUCKET: BUCKET.period * BUCKET.capacity / BUCKET.count}
"""Seconds."""
STARTS = 300
"""Spans are checked from so many instants on."""

Checks = list[tuple[int, int]]


def windows(checks: Iterable[tuple[int, int]], wall: int) -> Counter[int]:
    """How many admitted checks were surely in each window. `wall` is to be added for the time of the epoch."""
    length = WINDOW.period_us * 1000
    counts: Counter[int] = Counter()
    for began, ended in checks:
        first = (began + wall - SLACK) // length
        if first == (ended + wall + SLACK) // length:
            counts[first] += 1
    return counts


def excess(checks: Checks) -> float:
    """By how much the checks that were surely within a span exceed what a bucket admits in it, at most."""
    checks = sorted(checks)
    burst, rate = BUCKET.capacity, BUCKET.count / BUCKET.period_us / 1000
    most = float("-inf")
    for start in range(0, len(checks), max(len(checks) // STARTS, 1)):
        began = checks[start][0]
        for number, ended in enumerate(sorted(end for _, end in checks[start:]), 1):
            most = max(most, number - burst - rate * (ended - began))
    return most


@pytest.mark.parametrize("kind", ["shared", "redis_server", "mariadb", "postgres"])
def test_killed_processes(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, report: Callable[[str], None]
) -> None:
    server = None if kind == "shared" else request.getfixturevalue(kind).url
    url = store_url(kind, tmp_path, server)
    with Limiter(url) as limiter:
        limiter.peek("key", WINDOW)  # creates the file or the tables
        victims = Victims("lease_programs.check_leased", tmp_path, {"url": url}, random.Random(23))
        victims.run(SECONDS, PAUSE)
        wall = time.time_ns() - time.monotonic_ns()
        started = time.monotonic()
        for limit in (WINDOW, BUCKET):
            plain = replace(limit, lease=False)
            while (decision := limiter.peek("key", plain)).remaining < limit.capacity:
                assert decision.reset_after <= REFILLS_IN[limit] + 0.001
                assert time.monotonic() < started + PATIENCE, f"units are lost: {decision}"
                time.sleep(0.02)
    of_windows: Checks = []
    of_bucket: Checks = []
    for path in victims.ends:
        for began, ended, is_bucket in read_records(path, RECORD):
            (of_bucket if is_bucket else of_windows).append((began, ended))
    counts = windows(of_windows, wall)
    over = excess(of_bucket)
    report(
        f"{victims.kills} kills, {len(of_windows)} and {len(of_bucket)} admitted, windows {counts}, excess {over:.0f}"
    )
    assert victims.kills >= PROCESSES + 2
    assert max(counts.values()) <= WINDOW.count
    assert over <= BUCKET.count * SLACK / 1e9
    assert sum(counts.values()) > WINDOW.count / 4
    assert len(of_bucket) > BUCKET.capacity


def test_checkers_find_one_too_many() -> None:
    length = WINDOW.period_us * 1000
    checks = [(10 * length + length // 2 + number, 10 * length + length // 2 + number + 9) for number in range(301)]
    assert windows(checks, 0) == {10: 301}
    assert windows([(length - 5, length + 5)], 0) == {}, "not surely in one"
    assert excess([(0, 1)] * BUCKET.capacity) < 0.001
    assert excess([(0, 1)] * (BUCKET.capacity + 1)) > 0.99
