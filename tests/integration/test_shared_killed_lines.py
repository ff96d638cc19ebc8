"""Kills at every line of the shared store: a request is counted or not, and neither blocks nor slots leak.

Compiled code has no lines to stop at, so these run from the source only (see the Makefile)."""

from __future__ import annotations

from pathlib import Path

import pytest

from crestgate import Limit, Limiter
from crestgate.cli import version
from crestgate.core.algorithms import build
from crestgate.stores.port import Member, Op, Request
from crestgate.stores.shared import SharedStore
from crestgate.testing import FakeClock
from integration.crash_points import SCENARIOS, Scenario, crash_snapshots, open_limiter, read_usage
from integration.inspection import leaked_blocks


@pytest.mark.parametrize("name", SCENARIOS)
def test_kill_at_every_line(name: str, tmp_path: Path) -> None:
    """A kill at any line leaves the request counted or not counted; so does a second kill after it."""
    if "compiled" in version():
        pytest.skip("compiled code has no lines to stop at")
    scenario = SCENARIOS[name]
    path = tmp_path / "counters"
    clock = FakeClock(1_700_000_000)
    with Limiter(f"shared://{path}?max_keys=50", clock=clock) as limiter:
        scenario.prepare(limiter, clock)
    now = clock.now() + scenario.later
    prepared = path.read_bytes()
    before = usage_after_kill(path, prepared, now, scenario)
    first = crash_snapshots(path, prepared, now, scenario.act)
    after = usage_after_kill(path, first[-1], now, scenario)
    assert len(first) > 2
    for victim in first:
        usage = usage_after_kill(path, victim, now, scenario)
        if scenario.chained:
            assert usage in (before, after), "a part of the chain"
        for i, (key, _) in enumerate(scenario.watched):
            allowed = {before[i], after[i]} | ({0} if key in scenario.evicted[:1] else set())
            if scenario.reserves:
                # Two requests; the second, which gives back in pieces, may be partly done.
                allowed |= set(range(after[i], before[i] + scenario.reserves + 1))
            assert usage[i] in allowed, key
        for second in crash_snapshots(path, victim, now, scenario.act):
            final = usage_after_kill(path, second, now, scenario)
            for i, (key, _) in enumerate(scenario.watched):
                least = 0 if key in scenario.evicted else min(usage[i], after[i])
                maximum = max(before[i], after[i], usage[i]) + max(scenario.reserves, 1)
                assert least <= final[i] <= maximum, key


def usage_after_kill(path: Path, content: bytes, now: float, scenario: Scenario) -> list[int]:
    """The usage that the next process reads. Asserts that it can continue and that no blocks and no slots leak."""
    path.write_bytes(content)
    limiter, _ = open_limiter(path, now)
    usage = read_usage(limiter, scenario)
    for key, limit in scenario.watched:
        assert limiter.check(key, limit).reason == "ok"
    store = limiter.store
    assert isinstance(store, SharedStore)
    assert len(leaked_blocks(store)) <= scenario.leaks
    fill(store)
    limiter.close()
    return usage


def fill(store: SharedStore) -> None:
    """Use every slot that has no counter. By inline limits, which evict nobody: a slot that is lost is an error."""
    algorithm = build(Limit(1000, 3600), "fill")
    algorithm.inline = True
    table = store.table
    slots = [(stripe, slot) for stripe in range(table.stripes) for slot in range(table.slots)]
    free = [slot for slot in slots if not table.is_assigned(*slot)]
    for number in range(len(free)):
        store.apply([Request(Op.TAKE, [Member(f"fill:{number}", algorithm, 1)])])
    assert all(table.is_assigned(*slot) for slot in slots)
