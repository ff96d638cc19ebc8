"""The master is killed under load, and the sentinels promote its replica: service continues, within the stated bound.

The bound: the excess is at most what the old master admitted within the replication's lag before its
death; see failover.py. Here, on one machine, we allow a lag of LAG. In a second run the replica is cut off before
the death, so that the lag is known and something is really lost: then the excess equals the bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from crestgate import Limiter
from integration.network.failover import Failover
from integration.network.load_processes import LoadProcesses, with_options
from integration.network.workers import Target
from servers.machine import free_port, until
from servers.redis import RedisSentinels

CAPACITY = 6000
LIMIT = f"{CAPACITY}/year using fixed_window"
LAG = 0.5
"""Seconds that a replica on a busy machine may be behind."""
MAX_OUTAGE = 15.0
"""Seconds after which service continues. The sentinels wait 1.5 s, agree, and promote."""


@pytest.mark.parametrize("link", ["in step", "cut off"])
def test_master_is_killed(link: str, load_processes: LoadProcesses, report: Callable[[str], None]) -> None:
    with RedisSentinels() as sentinels:
        url = with_options(sentinels.url, timeout_ms=1000)
        load_processes.begin(url, [Target("key", [LIMIT])], callers=5, pause=0.02, policy="open")
        with Limiter(with_options(sentinels.master.url, timeout_ms=5000)) as direct:
            until("there is load", lambda: direct.peek("key", LIMIT).remaining < CAPACITY - 1000)
        cut_off = time.monotonic()
        if link == "cut off":
            sentinels.replica.cli("REPLICAOF", "127.0.0.1", free_port())
        surely_cut_off = time.monotonic()
        if link == "cut off":
            time.sleep(0.4)
        before_death = time.monotonic()
        sentinels.master.kill()
        after_death = time.monotonic()
        # Query the sentinels, not the replica: it closes all connections when it is promoted.
        until("the replica is promoted", lambda: sentinels.current is sentinels.replica)
        with Limiter(with_options(sentinels.replica.url, timeout_ms=5000)) as direct:
            until("the capacity is used up", lambda: direct.peek("key", LIMIT).remaining == 0)
        used_up = time.monotonic()
        time.sleep(0.5)  # all checks are denied now
        failover = Failover(load_processes.end(), CAPACITY, before_death, after_death)

    bound = failover.admitted_since(cut_off if link == "cut off" else before_death - LAG)
    report(failover.figures(bound))
    assert failover.outage < MAX_OUTAGE
    assert failover.recovered(used_up)
    assert -failover.lost_in_flight <= failover.over <= bound
    if link == "cut off":
        assert failover.over >= failover.admitted_since(surely_cut_off, surely=True) - failover.lost_in_flight > 0
