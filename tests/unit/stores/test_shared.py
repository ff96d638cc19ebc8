"""The shared file's own affairs that need no second process."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest

from headgate import Limiter, StoreError
from headgate.stores.shared import SharedStore
from headgate.testing import FakeClock


def test_no_room_is_said_when_the_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreError, match=r"no room for 23 MB; choose another folder or a smaller max_keys"):
        SharedStore(str(tmp_path / "counters"))
    assert list(tmp_path.iterdir()) == []


def test_the_file_has_its_room_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    SharedStore(str(path), max_keys=1000).close()
    assert path.stat().st_blocks * 512 >= path.stat().st_size


def test_a_limiter_that_is_dropped_lets_go_of_its_descriptors(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    path = tmp_path / "counters"
    Limiter(f"shared://{path}?max_keys=100").check("k", "5/hour")
    gc.collect()
    before = open_files()
    for _ in range(5):
        Limiter(f"shared://{path}").check("k", "5/hour")
    gc.collect()
    assert open_files() == before


def test_a_long_log_costs_no_more_to_add_to(tmp_path: Path) -> None:
    """Adding to a log looks at its ends only: counted in entries read, not in seconds."""
    from headgate.stores.shared.blocks import BlockLog

    clock = FakeClock(1_700_000_000)
    limiter = Limiter(f"shared://{tmp_path}/counters?max_keys=100", clock=clock)
    limit = "5000/hour using sliding_window_log"
    for _ in range(3000):
        clock.advance(0.000001)
        limiter.check("k", limit)
    assert limiter.peek("k", limit).remaining == 2000
    reads = 0
    original = BlockLog.__dict__.get("entry")
    if not callable(original) or not hasattr(original, "__code__"):
        return  # compiled methods cannot be counted; the pure build runs the same lines

    def counted(self: BlockLog, position: int) -> tuple[int, int]:
        nonlocal reads
        reads += 1
        return original(self, position)  # type: ignore[no-any-return]  # the method itself

    BlockLog.entry = counted  # type: ignore[method-assign]  # put back below
    try:
        for _ in range(10):
            clock.advance(0.000001)
            assert limiter.check("k", limit).allowed
    finally:
        BlockLog.entry = original  # type: ignore[method-assign]  # as it was
    assert reads <= 30


def test_a_changed_limit_or_algorithm_never_drops_the_counter_in_between(tmp_path: Path) -> None:
    """A killed process must find the counter under the old limit or the new: its slot is never empty meanwhile."""
    clock = FakeClock(1_700_000_000)
    store = SharedStore(str(tmp_path / "counters"), max_keys=10, clock=clock)
    plans = {"p": "100/hour"}
    limiter = Limiter(store, plans=plans)
    limiter.check("k", "p", cost=60)
    digest, stripe = store.place("p", "k")
    slot = store.find_slot(stripe, digest)
    for plan in ("1000/day", "1000/day using sliding_window_log", "900/day using gcra", "800/day using fixed_window"):
        plans["p"] = plan
        assert limiter.check("k", "p").allowed
        assert store.find_slot(stripe, digest) == slot
        assert store.arena.owned(stripe, slot) == ([0] if "log" in plan else [])
    assert limiter.peek("k", "p").remaining == 800 - 64
    store.close()
