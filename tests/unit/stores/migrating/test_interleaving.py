"""Nobody gets a fresh quota by being moved, whatever order things happen in and whatever fails meanwhile."""

from __future__ import annotations

import os

import pytest

from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from migration_interleaving import Instances

SEED = int(os.environ.get("CRESTGATE_TEST_SEED", "17"))
LIMITS = [
    "10/minute",
    "10/minute burst 4",
    "10/minute using leaky_bucket",
    "10/minute using gcra",
    "10/minute using fixed_window",
    "10/minute using sliding_window_log",
    "10/minute using sliding_window_counter",
]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("faults", [0.0, 0.1])
def test_random_order_and_faults_never_admit_more_than_one_store(limit: str, faults: float) -> None:
    algorithm = build(Limit.parse(limit), "limit")
    admitted = carried = 0  # CRESTGATE_TEST_SEED starts elsewhere
    for seed in range(SEED, SEED + 6):
        run = Instances(algorithm, seed, instances=3, faults=faults)
        for _ in range(400):
            chance = run.random.random()
            if chance < 0.02:  # a roll-out, which reaches one instance after the other
                run.set_percent(run.random.choice([0, 100]), run.random.randrange(3))
            elif chance < 0.3 and len(run.running) < 8:
                run.start(run.random.choice([1, 1, 1, 2, 3]))
            elif chance < 0.35:
                run.clock.advance(run.random.choice([0.001, 0.1, 1, 3, 12, 30]))
            elif run.running:
                run.step()
        run.finish()
        assert run.beyond_limit() == [], f"seed {seed}"
        admitted += len(run.admitted)
        carried += sum(sum(store.carrier.counts.carried) for store in run.instances)
    assert admitted > 40  # of 60 and more: a sliding log that was moved admits less for a period
    assert carried > 6
