"""Processes that hold slots of an in-flight limit and are killed at random: see in_flight_kills.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crestgate import AsyncLimiter
from integration.in_flight_kills import LIMIT, PROOF, SLOTS, TASKS, most_at_once, run, sure_holds
from integration.in_flight_programs import ENTERED, LEFT, LOST, PROVED, RECORD, hold_from_tasks
from integration.kill_runs import PROCESSES, STORES, BinaryJournal, read_records, store_url

SECONDS = 4.0


@pytest.mark.parametrize("kind", STORES)
def test_killed_holders(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, report: Callable[[str], None]
) -> None:
    server = None if kind in ("shared", "sqlite") else request.getfixturevalue(kind).url
    figures = run(store_url(kind, tmp_path, server), tmp_path, SECONDS)
    report(str(figures))
    assert figures["kills"] >= PROCESSES + 2
    assert figures["granted"] > 2 * SLOTS


def test_memory(tmp_path: Path) -> None:
    """One process has this store, so nobody is killed: as many tasks in it."""

    async def main() -> None:
        async with AsyncLimiter("memory://", on_store_error="closed") as limiter:
            journal = BinaryJournal(str(tmp_path / "journal"), RECORD)
            await hold_from_tasks(limiter, LIMIT, PROCESSES * TASKS, journal, 19, 1.0)
            assert (await limiter.peek("key", LIMIT)).remaining == SLOTS

    asyncio.run(main())
    holds = sure_holds(read_records(tmp_path / "journal", RECORD), time.monotonic_ns())
    assert holds.granted > 2 * SLOTS
    assert most_at_once(holds.intervals) == SLOTS


def test_checker_finds_one_holder_too_many(tmp_path: Path) -> None:
    """All slots are held at the same time; then a lie is added."""
    journal = BinaryJournal(str(tmp_path / "journal"), RECORD)
    for hold in range(SLOTS):
        journal.write(ENTERED, hold, 100 + hold, 90)
        journal.write(LEFT, hold, 200 + hold, 0)
    records = read_records(tmp_path / "journal", RECORD)
    assert most_at_once(sure_holds(records, 300).intervals) == SLOTS
    lie = [(ENTERED, SLOTS, 150, 140), (LEFT, SLOTS, 151, 0)]
    assert most_at_once(sure_holds([*records, *lie], 300).intervals) == SLOTS + 1
    assert most_at_once(sure_holds([*records, lie[0]], 300).intervals) == SLOTS + 1, "killed while it held"
    after = [(ENTERED, SLOTS, 200, 190), (LEFT, SLOTS, 201, 0)]
    assert most_at_once(sure_holds([*records, *after], 300).intervals) == SLOTS, "when the first has left"


def test_checker_counts_what_is_proved() -> None:
    late = 5 * PROOF
    assert sure_holds([(ENTERED, 1, 20, 10)], 30).intervals == [(20, 30)], "killed"
    assert sure_holds([(ENTERED, 1, 20, 10)], late).intervals == [(20, 10 + PROOF)], "stood still"
    assert sure_holds([(ENTERED, 1, 20, 10), (PROVED, 1, 40, 30)], late).intervals == [(20, 30 + PROOF)]
    lost = sure_holds([(ENTERED, 1, 20, 10), (LOST, 1, late, 0)], late)
    assert (lost.intervals, lost.lost) == ([(20, 10 + PROOF)], 1)


def test_cut_record_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(RECORD.pack(ENTERED, 1, 2, 1) + b"\0\0\0")
    assert read_records(tmp_path / "journal", RECORD) == [(ENTERED, 1, 2, 1)]
