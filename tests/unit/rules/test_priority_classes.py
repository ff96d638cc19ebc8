"""Classes in rules: tiers of one slot share its counter, each with its own ceiling."""

from __future__ import annotations

from pathlib import Path

import pytest

from crestgate import Limiter, RequestContext
from crestgate.core.algorithms import ALGORITHMS, BUILT_IN, build
from crestgate.core.limit import Limit
from crestgate.testing import FakeClock

SUBJECTS = {
    "global": RequestContext(path="/api"),
    "user": RequestContext(path="/api", user="42"),
    "[user, model]": RequestContext(path="/api", user="42", attributes={"model": "large"}),
}
LOOKED_AT = ["concurrency"]
"""A check takes no slot."""


@pytest.mark.parametrize("dimension", SUBJECTS)
@pytest.mark.parametrize("algorithm", [*(name for name in BUILT_IN if name not in LOOKED_AT), "calendar"])
def test_tiers_of_a_slot_are_classes_of_one_counter(algorithm: str, dimension: str, tmp_path: Path) -> None:
    if algorithm == "calendar":
        batch = critical = "calendar: day"
        batch += ", limit: 8"
        critical += ", limit: 10"
    elif ALGORITHMS[algorithm].takes_burst:
        critical = f"window_seconds: 60, algorithm: {algorithm}, limit: 10"
        batch = f"{critical}, burst: 8"
    else:
        critical, batch = (f"window_seconds: 60, algorithm: {algorithm}, limit: {count}" for count in (10, 8))
    file = tmp_path / "rules.yaml"
    file.write_text(
        f"rules:\n"
        f"  - {{rule_id: critical, dimension: {dimension}, {critical}}}\n"
        f"  - {{rule_id: batch, dimension: {dimension}, tier: batch, {batch}}}\n"
    )
    other = SUBJECTS[dimension]
    low = RequestContext(path="/api", user=other.user, attributes=other.attributes, tier="batch")
    with Limiter.from_config(file, environ={}, clock=FakeClock(1_700_000_000)) as limiter:
        granted = [limiter.check_request(context).allowed for context in (other, low) * 4]
        assert all(granted)
        denied = limiter.check_request(low)
        assert (denied.allowed, denied.name, denied.limit, denied.remaining) == (False, "batch", 8, 0)
        last = [limiter.check_request(other) for _ in range(3)]
        assert [(d.allowed, d.name, d.remaining) for d in last] == [
            (True, "critical", 1),
            (True, "critical", 0),
            (False, "critical", 0),
        ]


@pytest.mark.parametrize(
    ("count", "seconds", "tick"),
    [
        (52_124, 86_400, 1),
        (52_125, 86_400, 10),
        (1_737, 30 * 86_400, 1),
        (1_738, 30 * 86_400, 10),
        (80_000, 86_400, 10),
        (100_000, 86_400, 10),
        (521_249, 86_400, 10),
        (521_250, 86_400, 100),
    ],
)
def test_ticks_of_large_sliding_window_counters(count: int, seconds: int, tick: int) -> None:
    """Those of docs/priorities.md: classes of different ticks share a counter, but not exactly."""
    assert build(Limit(count, seconds, algorithm="sliding_window_counter"), "").tick == tick


def test_classes_of_different_ticks_never_exceed_a_ceiling() -> None:
    batch, critical = (
        Limit(count, 30 * 86_400, algorithm="sliding_window_counter", name="month") for count in (1_600, 2_000)
    )
    clock = FakeClock(1_700_000_000)
    with Limiter("memory://", clock=clock) as limiter:
        for _ in range(200):
            limiter.check("org:acme", critical, cost=50)
            used = 2_000 - limiter.peek("org:acme", critical).remaining
            decision = limiter.check("org:acme", batch, cost=50)
            assert decision.allowed is (used + 50 <= 1_600)
            assert limiter.peek("org:acme", critical).remaining == 2_000 - used - (50 if decision else 0)
            clock.advance(86_400)
