"""Processes that hold slots of an in-flight limit and are killed at random: never more holders than slots.

Every slot is free again after its time to live. Checked against the recorded intervals."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crestgate import Limiter
from servers.process import GivenServer
from servers.redis import RedisServer

SLOTS, TTL = 3, 2.0
LIMIT = f"{SLOTS} concurrent ttl {TTL:g}s"
SECONDS = 8.0
PROCESSES = 6

HOLDER = """
import json, random, sys, time
from crestgate import Limiter, RateLimitExceeded
url, limit, path = sys.argv[1:]
limiter, rolls = Limiter(url, on_store_error="closed"), random.Random(path)
with open(path, "a", buffering=1) as history:
    while True:
        try:
            with limiter.hold("key", limit, timeout=5) as held:
                history.write(json.dumps(["enter", time.monotonic()]) + "\\n")
                time.sleep(3.0 if rolls.random() < 0.02 else 0.02 * rolls.random())
                history.write(json.dumps(["lost" if held.lost else "leave", time.monotonic()]) + "\\n")
        except (RateLimitExceeded, TimeoutError):
            pass
"""


def intervals(history: Path, killed_at: float) -> list[tuple[float, float]]:
    """When a process held a slot; the last time until it was killed. Holds that were lost do not count."""
    held: list[tuple[float, float]] = []
    entered: float | None = None
    for line in history.read_text().splitlines() if history.exists() else []:
        try:
            what, at = json.loads(line)
        except ValueError:  # killed while it wrote the line
            break
        if what == "enter":
            entered = at
        elif entered is not None:
            if what == "leave":
                held.append((entered, at))
            entered = None
    return [*held, (entered, killed_at)] if entered is not None else held


def most_at_once(held: list[tuple[float, float]]) -> int:
    edges = sorted([(start, 1) for start, _ in held] + [(end, -1) for _, end in held])
    most = now = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


def check(url: str, folder: Path) -> None:
    with Limiter(url) as limiter:
        limiter.peek("key", LIMIT)  # creates the file or the tables
    rolls = random.Random(19)
    running: list[tuple[subprocess.Popen[bytes], Path]] = []
    held: list[tuple[float, float]] = []
    killed = 0

    def start() -> None:
        path = folder / f"history-{killed}-{len(running)}"
        process = subprocess.Popen([sys.executable, "-c", HOLDER, url, LIMIT, str(path)], env=os.environ)
        running.append((process, path))

    def kill(position: int) -> None:
        process, path = running.pop(position)
        process.send_signal(signal.SIGKILL)
        process.wait()
        held.extend(intervals(path, time.monotonic()))

    try:
        for _ in range(PROCESSES):
            start()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            time.sleep(0.4 + 0.6 * rolls.random())
            kill(rolls.randrange(len(running)))
            killed += 1
            start()
    finally:
        while running:
            kill(0)
    ended = time.monotonic()
    assert killed >= 3
    assert len(held) >= 20
    assert most_at_once(held) <= SLOTS
    with Limiter(url) as limiter:
        time.sleep(max(0.0, ended + TTL + 0.1 - time.monotonic()))
        assert limiter.peek("key", LIMIT).remaining == SLOTS


def test_shared_memory(tmp_path: Path) -> None:
    check(f"shared://{tmp_path / 'counters'}?timeout_ms=5000", tmp_path)


def test_sqlite(tmp_path: Path) -> None:
    check(f"sqlite:///{tmp_path / 'counters.db'}?timeout_ms=5000", tmp_path)


def test_redis(tmp_path: Path, redis_server: RedisServer | GivenServer) -> None:
    check(f"{redis_server.url}?prefix=in-flight-{os.getpid()}&timeout_ms=5000", tmp_path)


def test_checker_counts_overlaps() -> None:
    assert most_at_once([(0, 2), (1, 3), (2, 4)]) == 2
    assert most_at_once([(0, 2), (1, 3), (1.5, 4)]) == pytest.approx(3)
