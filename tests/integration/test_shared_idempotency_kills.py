"""What is decided once by many processes of one machine: one of them decides, whoever is killed meanwhile."""

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
from integration.child_process import Child, until
from integration.shared_idempotency_programs import BODY, PLENTY, ask, name_at

Start = Callable[..., Child]
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
        assert child.hear() == "ready"
    for child in children:
        child.say("go")
    results = [child.finish() for child in children]
    for answers in zip(*results, strict=True):
        assert sum(decided for decided, _ in answers) == 1
        assert len({tuple(remaining) for _, remaining in answers}) == 1, "and all tell the same"
    assert (used_in(counters, "a"), used_in(counters, "b")) == (NAMES, NAMES)


def test_forked_children_decide_once(counters: Path, start: Start) -> None:
    decided = start("shared_idempotency_programs.fork_and_race", url=at(counters), names=NAMES, children=4).finish()
    assert sum(decided) == NAMES
    assert used_in(counters, "a") == NAMES
    assert used_in(counters, "before") == 1


def test_random_kills_leave_every_record_intact(tmp_path: Path, counters: Path, start: Start) -> None:
    """What is kept was charged once. Whoever is killed may have charged one request that was not kept yet."""
    page = tmp_path / "page"
    page.write_bytes(bytes(2))
    with open(page, "r+b") as file:
        page_flags = mmap.mmap(file.fileno(), 2)
    nursery = start("kill_programs.nursery")
    order = {
        "program": "shared_idempotency_programs.race_for_ever",
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
                nursery.say(order)
                pids.append(nursery.hear())
                if kill >= 3:
                    before = used(store, "key")
                    until("another request is counted", lambda: used(store, "key") > before)  # noqa: B023
                    time.sleep(chance.uniform(0.002, 0.02))  # the random moment
                    os.kill(pids.pop(chance.randrange(len(pids))), signal.SIGKILL)
            page_flags[0] = 1
            until("the others have ended", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert not page_flags[1], "somebody got another answer to the same question"
    ended = time.monotonic()
    with Limiter(at(counters)) as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        charged = used(store, "key")
        names = [f"n{number}" for number in range(int(name_at(began)[1:]), int(name_at(ended)[1:]) + 1)]
        replay = [name for name in names if not ask(store, name, "not asked before")[0]]
        remaining = [ask(store, name, "key")[1][0] for name in replay]
    assert len(replay) >= KILLS
    assert len(replay) <= charged <= len(replay) + KILLS
    assert len(set(remaining)) == len(remaining), "each was decided by itself"


# -- every moment -----------------------------------------------------------------------------------------------------


class Files(NamedTuple):
    """What a kill leaves behind: the counters and the records."""

    counters: bytes
    records: bytes


def opened(path: Path, left: Files | None) -> SharedStore:
    if left is not None:
        path.write_bytes(left.counters)
        Path(f"{path}.once").write_bytes(left.records)
    return SharedStore(str(path), 50, 2000, clock=FakeClock(1_700_000_000))


def moments(path: Path, left: Files, name: str) -> list[Files]:
    """Ask once; both files as they were at every line in which one had changed."""
    store = opened(path, left)
    records = store.open_records(1.0)
    seen = [Files(store.memory[:], records.memory[:])]

    def look() -> None:
        now = Files(store.memory[:], records.memory[:])
        if now != seen[-1]:
            seen.append(now)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if "/stores/" not in frame.f_code.co_filename:
            return None
        look()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ask(store, name, "key")
    finally:
        sys.settrace(before)
    look()
    store.close()
    return seen


def standing(path: Path, left: Files, name: str) -> tuple[bool, int]:
    """What the next participant finds: whether it is kept, and what is used. It can go on, and others are as before."""
    store = opened(path, left)
    before = used(store, "key")
    claim = IdempotencyRecord(name, BODY, b"")
    store.apply([Request(Op.CLAIM, [], claim)])
    assert not claim.pending
    if claim.replay is not None:
        assert (claim.replay.fingerprint, claim.replay.note) == (BODY, name.encode())
        assert claim.replay.numbers[0][:2] == (True, PLENTY.capacity - before)
    else:
        store.apply([Request(Op.RELEASE, [], claim)])
    decided, remaining = ask(store, name, "key")
    assert decided is (claim.replay is None)
    assert ask(store, name, "key") == (False, remaining)
    assert ask(store, "a new one", "other")[0]
    store.close()
    return claim.replay is not None, before


@pytest.mark.parametrize("earlier", [0, 1, 1000], ids=["the first", "the second", "written over an older one"])
def test_kill_at_every_line(earlier: int, counters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever somebody is killed: nothing, or charged, or charged and kept. Never kept and not charged."""
    if "compiled" in version():
        pytest.skip("compiled code has no lines to stop at; the uncompiled build is stopped at all of them")
    monkeypatch.setattr(idempotency_file, "MIN_STRIPE_BYTES", 1024)
    monkeypatch.setattr(idempotency_file, "PAGE_BYTES", 64)
    store = opened(counters, None)
    for number in range(earlier):
        ask(store, f"earlier {number}", "key")
    records = store.open_records(1.0)
    prepared = Files(store.memory[:], records.memory[:])
    heads = [records.words[(4096 + stripe * records.stripe_bytes) >> 3] for stripe in range(16)]
    assert (min(heads) > records.ring_bytes) is (earlier == 1000), "the rings have gone round"
    store.close()
    first = moments(counters, prepared, "n")
    after = [standing(counters, left, "n") for left in first]
    assert set(after) == {(False, earlier), (False, earlier + 1), (True, earlier + 1)}
    assert after == sorted(after, key=lambda state: (state[0], state[1])), "in this order"
    for victim, (_, charged) in zip(first, after, strict=True):
        for left in moments(counters, victim, "n"):
            replay, total = standing(counters, left, "n")
            assert earlier + replay <= total <= charged + 1
