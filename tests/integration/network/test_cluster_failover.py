"""A cluster master is killed or hangs under load: its replica takes over, and other masters are hardly affected.

The bound is that of failover.py, for each key of the lost master.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from crestgate import Limiter
from integration.network.crew import Crew, with_options
from integration.network.failover import Failover
from integration.network.history import by_key, in_line
from integration.network.workers import Target
from servers.machine import until
from servers.redis import RedisCluster

KEYS = [f"key:{number}" for number in range(18)]
CAPACITY = 250
LIMIT = f"{CAPACITY}/year using fixed_window"
LAG = 0.5
AWAY = 15.0
DEADLINE = 1.0
NOISE = 0.4


@pytest.mark.parametrize("fate", ["killed", "hung"])
def test_master_is_lost(fate: str, crew: Crew, report: Callable[[str], None]) -> None:
    # By default a cluster that misses a master refuses everything.
    with RedisCluster(node_timeout=1.0, settings={"cluster-require-full-coverage": "no"}) as cluster:
        url = with_options(cluster.url, timeout_ms=int(DEADLINE * 1000), tags=64)
        targets = [Target(key, [LIMIT]) for key in KEYS]
        with Limiter(with_options(url, pool_size=1)) as limiter:
            crew.begin(url, targets, callers=6, pause=0.02, policy="open")
            time.sleep(1)  # a second of load before the death
            masters = cluster.masters
            lost = masters[0]
            before_death = time.monotonic()
            if fate == "killed":
                lost.kill()
            else:
                lost.pause()
            after_death = time.monotonic()
            until("a replica has taken over", lambda: len(cluster.masters) == len(masters))
            until("all is used up", lambda: all(limiter.peek(key, LIMIT).reason == "limited" for key in KEYS))
        time.sleep(0.5)  # all of them are denied now
        history = by_key(crew.end())

    ended = max(check.end for checks in history.values() for check in checks)
    hit = {key for key, checks in history.items() if any(check.reason == "fail_open" for check in checks)}
    assert hit
    assert len(hit) < len(KEYS)
    for key in history.keys() - hit:
        assert in_line(history[key], CAPACITY) == CAPACITY, "its master has decided all the time"
    failovers = [Failover(history[key], CAPACITY, before_death, after_death) for key in hit]
    for failover in failovers:
        assert failover.outage < AWAY
        assert failover.recovered(ended - 0.3)
        assert -failover.let_pass <= failover.over <= failover.admitted_since(before_death - LAG)
    slowest = max(check.end - check.start for checks in history.values() for check in checks)
    assert slowest < DEADLINE + NOISE
    report(
        f"{len(hit)} of {len(KEYS)} keys away for {max(f.outage for f in failovers):.1f} s; admitted too much: "
        f"{sum(f.over for f in failovers)} (bound {sum(f.admitted_since(before_death - LAG) for f in failovers)}); "
        f"the slowest check took {slowest * 1000:.0f} ms"
    )
