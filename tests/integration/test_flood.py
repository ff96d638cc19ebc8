"""A flood of keys that never recur (such as rotating addresses) does not grow memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crestgate import Limiter
from crestgate.cli import version
from crestgate.stores.memory import MemoryStore
from crestgate.testing import FakeClock
from integration.child_process import ChildProcess

Start = Callable[..., ChildProcess]

MILLION = 1_000_000
COMPILED = "(compiled)" in version()
LASTING = "100/day"
"""No counter of it expires during a test, so the table is full at any speed of the machine."""


def assert_flat(result: dict[str, Any], per_key: int = 0) -> None:
    """Memory grew by less than a tenth. A resized table takes time to settle: with few keys, allow `per_key` bytes
    per key, which is less than any stored key needs.
    """
    assert result["failures"] == 0
    assert result["early"] > 0
    assert result["late"] < max(1.1 * result["early"], result["early"] + per_key * result["keys"]), result


@pytest.mark.slow
def test_millions_of_fresh_keys(start: Start) -> None:
    child = start(
        "flood_programs.fresh_keys",
        url="memory://?max_keys=100000",
        limit=LASTING,
        early=MILLION,
        min_keys=5 * MILLION if COMPILED else 2 * MILLION,
        max_keys=5 * MILLION,
        seconds=30,
    )
    assert_flat(child.finish())


@pytest.mark.slow
def test_fresh_keys_exhausted_by_one_check(start: Start) -> None:
    """Each comes under pressure, which is recorded too."""
    child = start(
        "flood_programs.fresh_keys",
        url="memory://?max_keys=100000",
        limit="1/hour",
        early=300_000,
        min_keys=600_000,
        max_keys=600_000,
        seconds=30,
    )
    assert_flat(child.finish())


@pytest.mark.slow
def test_fresh_keys_in_a_shared_file(counters: Path, start: Start) -> None:
    child = start(
        "flood_programs.fresh_keys",
        url=f"shared://{counters}?max_keys=10000",
        limit=LASTING,
        early=50_000,
        min_keys=200_000,
        max_keys=200_000,
        seconds=30,
    )
    assert_flat(child.finish())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_fresh_keys_under_mixed_limits(kind: str, counters: Path, start: Start) -> None:
    url = "memory://?max_keys=20000" if kind == "memory" else f"shared://{counters}?max_keys=5000"
    early, late = (150_000, 450_000) if kind == "memory" else (30_000, 90_000)
    assert_flat(start("flood_programs.mixed_limits", url=url, early=early, late=late).finish(), per_key=40)


def test_settled_entries_expire_with_their_period() -> None:
    clock = FakeClock(1_700_000_000)
    with Limiter("memory://", clock=clock) as limiter:
        limit = "10/minute using sliding_window_log"
        for _ in range(1000):
            limiter.reserve("key", limit, 5).settle(0)
            clock.advance(1)
        store = limiter.store
        assert isinstance(store, MemoryStore)
        entry = store.table.find(limit, "key")
        if entry is not None:
            assert entry.log is not None
            assert len(entry.log.cells) <= 2 * 130  # type: ignore[attr-defined]  # entries that are live or about to be trimmed


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_recently_used_keys_survive_a_flood(kind: str, counters: Path) -> None:
    clock = FakeClock(1_700_000_000)
    url = "memory://?max_keys=1000" if kind == "memory" else f"shared://{counters}?max_keys=1000"
    with Limiter(url, clock=clock) as limiter:
        hot = [f"hot:{i}" for i in range(50)]
        for key in hot:
            limiter.check(key, "10/year", 10)
        for number in range(20_000):
            clock.advance(0.000_1)
            limiter.check(f"fresh:{number}", "10/year")
            assert limiter.check(hot[number % 50], "10/year").reason == "limited"
