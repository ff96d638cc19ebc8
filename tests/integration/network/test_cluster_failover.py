"""A cluster master is killed or hangs under load: its replica takes over, and other masters are hardly affected.

The bound is that of failover.py, for each key of the lost master.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from crestgate import Limiter
from integration.network.failover import Failover
from integration.network.history import assert_linearizable, by_key
from integration.network.load_processes import LoadProcesses, with_options
from integration.network.workers import Target
from servers.machine import until
from servers.redis import RedisCluster
from stalls import Stalls

KEYS = [f"key:{number}" for number in range(18)]
CAPACITY = 250
LIMIT = f"{CAPACITY}/year using fixed_window"
LAG = 0.5
MAX_OUTAGE = 15.0
DEADLINE = 1.0
NOISE = 0.4
"""Seconds after the deadline in which a machine that is not busy surely answers."""
FACTOR = 10
"""On a busy machine an answer passes several processes and threads, each of which waits for a core."""


@pytest.mark.parametrize("fault", ["killed", "hung"])
def test_master_is_lost(fault: str, load_processes: LoadProcesses, report: Callable[[str], None]) -> None:
    # By default a cluster that misses a master refuses everything.
    settings = {"cluster-require-full-coverage": "no"}
    with Stalls() as stalls, RedisCluster(node_timeout=1.0, settings=settings) as cluster:
        url = with_options(cluster.url, timeout_ms=int(DEADLINE * 1000), tags=64)
        targets = [Target(key, [LIMIT]) for key in KEYS]
        with Limiter(with_options(url, pool_size=1)) as limiter:
            load_processes.begin(url, targets, callers=6, pause=0.02, policy="open")
            time.sleep(1)  # a second of load before the death
            masters = cluster.masters
            lost = masters[0]
            before_death = time.monotonic()
            if fault == "killed":
                lost.kill()
            else:
                lost.pause()
            after_death = time.monotonic()
            until("a replica has taken over", lambda: len(cluster.masters) == len(masters))
            until("all limits are used up", lambda: all(limiter.peek(key, LIMIT).reason == "limited" for key in KEYS))
        time.sleep(0.5)  # all checks are denied now
        history = by_key(load_processes.end())
        noise = max(NOISE, FACTOR * stalls.longest())

    ended = max(check.end for checks in history.values() for check in checks)
    hit = {key for key, checks in history.items() if any(check.reason == "fail_open" for check in checks)}
    assert hit
    assert len(hit) < len(KEYS)
    for key in history.keys() - hit:
        assert assert_linearizable(history[key], CAPACITY) == CAPACITY, "its master was never lost"
    failovers = [Failover(history[key], CAPACITY, before_death, after_death) for key in hit]
    for failover in failovers:
        assert failover.outage < MAX_OUTAGE
        assert failover.recovered(ended - 0.3)
        assert -failover.passed_by_policy <= failover.over <= failover.admitted_since(before_death - LAG)
    slowest = max(check.end - check.start - check.stalled for checks in history.values() for check in checks)
    assert slowest < DEADLINE + noise
    report(
        f"{len(hit)} of {len(KEYS)} keys away for {max(f.outage for f in failovers):.1f} s; admitted too much: "
        f"{sum(f.over for f in failovers)} (bound {sum(f.admitted_since(before_death - LAG) for f in failovers)}); "
        f"the slowest check took {slowest * 1000:.0f} ms"
    )
