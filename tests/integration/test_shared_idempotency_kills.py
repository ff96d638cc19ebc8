"""Idempotent requests of many processes on one machine: exactly one process decides, even if others are killed."""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from crestgate import Limiter
from crestgate.cli import version
from crestgate.stores.port import IdempotencyRecord, Member, Op, Request
from crestgate.stores.shared import SharedStore, idempotency_file
from crestgate.testing import FakeClock
from integration.child_process import ChildProcess, wait_until
from integration.shared_idempotency_programs import BODY, PLENTY, name_at, take_once

Start = Callable[..., ChildProcess]
PROCESSES = 8
NAMES = 300
KILLS = 60


def at(path: Path) -> str:
    return f"shared://{path}?timeout_ms=10000"


def used(store: SharedStore, key: str) -> int:
    return PLENTY.capacity - store.apply([Request(Op.PEEK, [Member(key, PLENTY, 0)])])[0][0].decision.remaining


def used_in(path: Path, key: str) -> int:
    with Limiter(at(path)) as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        return used(store, key)


def test_concurrent_processes_decide_once(counters: Path, start: Start) -> None:
    children = [start("shared_idempotency_programs.race", url=at(counters), names=NAMES) for _ in range(PROCESSES)]
    for child in children:
        assert child.receive() == "ready"
    for child in children:
        child.send("go")
    results = [child.finish() for child in children]
    for outcomes in zip(*results, strict=True):
        assert sum(decided for decided, _ in outcomes) == 1
        assert len({tuple(remaining) for _, remaining in outcomes}) == 1, "all report the same"
    assert (used_in(counters, "a"), used_in(counters, "b")) == (NAMES, NAMES)


def test_forked_children_decide_once(counters: Path, start: Start) -> None:
    decided = start("shared_idempotency_programs.fork_and_race", url=at(counters), names=NAMES, children=4).finish()
    assert sum(decided) == NAMES
    assert used_in(counters, "a") == NAMES
    assert used_in(counters, "before") == 1


def test_random_kills_leave_every_record_intact(tmp_path: Path, counters: Path, start: Start) -> None:
    """Every record was charged once. A killed process may have charged one request without a record."""
    page = tmp_path / "page"
    page.write_bytes(bytes(2))
    with open(page, "r+b") as file:
        page_flags = mmap.mmap(file.fileno(), 2)
    fork_server = start("kill_programs.fork_server")
    task = {
        "program": "shared_idempotency_programs.race_forever",
        "arguments": {"url": at(counters), "page": str(page)},
    }
    chance = random.Random(20_241_115)
    began = time.monotonic()
    pids: list[int] = []
    with Limiter(at(counters)) as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        try:
            for kill in range(KILLS + 3):
                fork_server.send(task)
                pids.append(fork_server.receive())
                if kill >= 3:
                    before = used(store, "key")
                    wait_until("another request is counted", lambda: used(store, "key") > before)  # noqa: B023
                    time.sleep(chance.uniform(0.002, 0.02))  # a random time
                    os.kill(pids.pop(chance.randrange(len(pids))), signal.SIGKILL)
            page_flags[0] = 1
            wait_until("the others have ended", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert not page_flags[1], "a replay differed from the first decision"
    ended = time.monotonic()
    with Limiter(at(counters)) as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        charged = used(store, "key")
        names = [f"n{number}" for number in range(int(name_at(began)[1:]), int(name_at(ended)[1:]) + 1)]
        replay = [name for name in names if not take_once(store, name, "not asked before")[0]]
        remaining = [take_once(store, name, "key")[1][0] for name in replay]
    assert len(replay) >= KILLS
    assert len(replay) <= charged <= len(replay) + KILLS
    assert len(set(remaining)) == len(remaining), "each was decided separately"


# -- every line -------------------------------------------------------------------------------------------------------


class Files(NamedTuple):
    """The files that a kill leaves: counters and records."""

    counters: bytes
    records: bytes


def open_store(path: Path, files: Files | None) -> SharedStore:
    if files is not None:
        path.write_bytes(files.counters)
        Path(f"{path}.once").write_bytes(files.records)
    return SharedStore(str(path), 50, 2000, clock=FakeClock(1_700_000_000))


def crash_snapshots(path: Path, files: Files, name: str) -> list[Files]:
    """Send one request; return both files at every line where one had changed."""
    store = open_store(path, files)
    records = store.open_records(1.0)
    snapshots = [Files(store.memory[:], records.memory[:])]

    def record_change() -> None:
        now = Files(store.memory[:], records.memory[:])
        if now != snapshots[-1]:
            snapshots.append(now)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if "/stores/" not in frame.f_code.co_filename:
            return None
        record_change()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        take_once(store, name, "key")
    finally:
        sys.settrace(before)
    record_change()
    store.close()
    return snapshots


def recover(path: Path, files: Files, name: str) -> tuple[bool, int]:
    """The next process: whether the record exists, and the usage. Asserts that the process can continue."""
    store = open_store(path, files)
    before = used(store, "key")
    claim = IdempotencyRecord(name, BODY, b"")
    store.apply([Request(Op.CLAIM, [], claim)])
    assert not claim.pending
    if claim.replay is not None:
        assert (claim.replay.fingerprint, claim.replay.note) == (BODY, name.encode())
        assert claim.replay.numbers[0][:2] == (True, PLENTY.capacity - before)
    else:
        store.apply([Request(Op.RELEASE, [], claim)])
    decided, remaining = take_once(store, name, "key")
    assert decided is (claim.replay is None)
    assert take_once(store, name, "key") == (False, remaining)
    assert take_once(store, "a new one", "other")[0]
    store.close()
    return claim.replay is not None, before


@pytest.mark.parametrize("earlier", [0, 1, 1000], ids=["the first", "the second", "written over an older one"])
def test_kill_at_every_line(earlier: int, counters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill leaves nothing, a charge, or a charge and a record. Never a record without a charge."""
    if "compiled" in version():
        pytest.skip("compiled code has no lines to stop at; the uncompiled build is stopped at all of them")
    monkeypatch.setattr(idempotency_file, "MIN_STRIPE_BYTES", 1024)
    monkeypatch.setattr(idempotency_file, "PAGE_BYTES", 64)
    store = open_store(counters, None)
    for number in range(earlier):
        take_once(store, f"earlier {number}", "key")
    records = store.open_records(1.0)
    prepared = Files(store.memory[:], records.memory[:])
    heads = [records.words[(4096 + stripe * records.stripe_bytes) >> 3] for stripe in range(16)]
    assert (min(heads) > records.ring_bytes) is (earlier == 1000), "the rings have wrapped around"
    store.close()
    first = crash_snapshots(counters, prepared, "n")
    after = [recover(counters, files, "n") for files in first]
    assert set(after) == {(False, earlier), (False, earlier + 1), (True, earlier + 1)}
    assert after == sorted(after, key=lambda state: (state[0], state[1])), "in this order"
    for victim, (_, charged) in zip(first, after, strict=True):
        for files in crash_snapshots(counters, victim, "n"):
            replay, total = recover(counters, files, "n")
            assert earlier + replay <= total <= charged + 1
