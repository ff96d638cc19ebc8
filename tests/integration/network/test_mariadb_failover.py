"""The primary is killed under load and its replica promoted: service continues, within the stated bound.

The limiters use one address, like a virtual IP or a database proxy, which is switched to the replica once that is
promoted. The bound is that of failover.py: the excess is at most what the primary
committed within the replication's lag before its death; none with semi-synchronous replication, where a commit is
answered once the replica has it. In one run the replica is cut off before the death, so that the lag is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from crestgate import Limiter
from integration.network.failover import Failover
from integration.network.load_processes import LoadProcesses, with_options
from integration.network.workers import Target
from servers.machine import until
from servers.mariadb import MariaDBPair
from servers.proxy import CuttingProxy

CAPACITY = 2000
LIMIT = f"{CAPACITY}/year using fixed_window"
LAG = 0.5
"""Seconds that a replica on a busy machine may be behind."""
BEHIND = 200
"""Checks that the replica misses: more than can be in flight when the primary dies."""
MAX_OUTAGE = 15.0
"""Seconds after which service continues. To promote the replica takes most of them."""


@pytest.mark.parametrize("link", ["in step", "cut off", "semi-synchronous"])
def test_primary_is_killed(link: str, load_processes: LoadProcesses, report: Callable[[str], None]) -> None:
    with MariaDBPair(semi_sync=link == "semi-synchronous") as pair, CuttingProxy(pair.primary.port) as address:
        url = with_options(pair.url.replace(f":{pair.primary.port}/", f":{address.port}/"), timeout_ms=2000)
        with Limiter(url) as limiter:  # makes the tables
            pair.catch_up()
            load_processes.begin(url, [Target("key", [LIMIT])], callers=5, pause=0.05, policy="open")
            until("there is load", lambda: limiter.peek("key", LIMIT).remaining < CAPACITY - 300)
            cut_off = time.monotonic()
            if link == "cut off":
                pair.replica.sql("STOP SLAVE IO_THREAD")
            surely_cut_off = time.monotonic()
            if link == "cut off":
                remaining = limiter.peek("key", LIMIT).remaining
                until("the replica is behind", lambda: limiter.peek("key", LIMIT).remaining < remaining - BEHIND)
        before_death = time.monotonic()
        pair.primary.kill()
        after_death = time.monotonic()
        pair.promote()
        address.target_port = pair.replica.port
        with Limiter(with_options(pair.replica.url, timeout_ms=5000)) as direct:
            until("the capacity is used up", lambda: direct.peek("key", LIMIT).remaining == 0)
        used_up = time.monotonic()
        time.sleep(0.5)  # all checks are denied now
        failover = Failover(load_processes.end(), CAPACITY, before_death, after_death)

    since = {"in step": before_death - LAG, "cut off": cut_off, "semi-synchronous": float("inf")}
    bound = failover.admitted_since(since[link])
    report(failover.figures(bound))
    assert failover.outage < MAX_OUTAGE
    assert failover.recovered(used_up)
    assert -failover.lost_in_flight <= failover.over <= bound
    if link == "cut off":
        assert failover.over >= failover.admitted_since(surely_cut_off, surely=True) - failover.lost_in_flight > 0
