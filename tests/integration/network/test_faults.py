"""A store that hangs, dies, refuses, stalls or breaks off in mid-reply costs each check its deadline at most.

The check is then answered by its policy; after a few of them nobody asks the store for a while; when the store is
back, so are its answers, without anybody's help. And whatever was lost on the way is counted at most once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from typing import NamedTuple
from uuid import uuid4

import pytest

from headgate import Limiter
from integration.children import until
from integration.network.crew import with_options
from integration.network.history import Check, admitted
from integration.network.victims import KINDS, POLICIES, REASONS, Kind, Victim, breaker_states, victim
from servers.mariadb import MariaDB
from servers.proxy import CuttingProxy
from servers.redis import RedisServer

DEADLINE = 0.2
NOISE = 0.4
"""Seconds that a busy machine may add to a deadline."""
BACK = 3.0
"""Seconds within which a store that is back is asked again: the breaker's pause is one."""
LIMIT = "1000000/year using fixed_window"
FEW = "5/year"

Report = Callable[[str], None]


class Site(NamedTuple):
    """A server, and a proxy before it."""

    server: RedisServer | MariaDB
    proxy: CuttingProxy

    def url(self, **options: object) -> str:
        """Through the proxy, with the deadline of these tests."""
        through = self.server.url.replace(f":{self.server.port}/", f":{self.proxy.port}/")
        return with_options(through, **{"timeout_ms": int(DEADLINE * 1000), **options})

    def used(self, prefix: str, key: str, limit: str = LIMIT) -> int:
        """What the server itself has counted."""
        with Limiter(with_options(self.server.url, prefix=prefix, timeout_ms=10_000), on_store_error="closed") as limiter:
            standing = limiter.peek(key, limit, 0)
            assert standing.reason == "ok"
            return standing.limit - standing.remaining


@pytest.fixture(scope="module", params=["redis", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer | MariaDB]:
    """A server that is ours to harm. What MariaDB commits outlives its process, if not the machine."""
    with RedisServer() if request.param == "redis" else MariaDB(flush_log=2) as started:
        yield started


@pytest.fixture
def site(server: RedisServer | MariaDB) -> Iterator[Site]:
    with CuttingProxy(server.port) as proxy:
        yield Site(server, proxy)


@pytest.fixture
def prefix() -> str:
    return uuid4().hex


FAULTS: dict[str, tuple[Callable[[Site], object], Callable[[Site], object]]] = {
    "hung": (lambda site: site.server.pause(), lambda site: site.server.resume()),
    "killed": (lambda site: site.server.kill(), lambda site: site.server.start()),
    "refused": (lambda site: site.proxy.refuse(), lambda site: site.proxy.pass_all()),
    "slow": (lambda site: site.proxy.delay(DEADLINE * 3), lambda site: site.proxy.pass_all()),
    "stalled": (lambda site: site.proxy.hang(), lambda site: site.proxy.pass_all()),
}
WAITS = ("hung", "slow", "stalled")
"""With these nobody says that there will be no answer."""


def seconds(checks: Sequence[Check]) -> list[float]:
    return [check.end - check.start for check in checks]


def in_time(checks: Sequence[Check]) -> None:
    slowest = max(seconds(checks))
    assert slowest < DEADLINE + NOISE, f"a check took {slowest * 1000:.0f} ms"


def warm(victims: Sequence[Victim]) -> None:
    """Every victim has asked the store, and was answered by it."""
    for one in victims:
        until("the store answers", lambda one=one: one.check("warm", LIMIT).reason == "ok")  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_that_fails(fault: str, kind: Kind, site: Site, prefix: str, report: Report) -> None:
    begin, end = FAULTS[fault]
    with ExitStack() as stack:
        victims = [stack.enter_context(victim(kind, site.url(prefix=prefix), policy)) for policy in POLICIES]
        warm(victims)
        begin(site)
        try:
            waited = []
            for one in victims:
                checks = [check for _ in range(4) for check in one.at_once(8, one.policy, LIMIT)]
                in_time(checks)
                assert {check.reason for check in checks} == {REASONS[one.policy]}
                assert {check.allowed for check in checks} == {one.policy != "closed"}
                waited += checks[:8]
                assert breaker_states(one.limiter) <= {"open", "half-open"}, "it has failed often enough"
            if fault in WAITS:
                assert DEADLINE - 0.05 < median(seconds(waited)) < DEADLINE + 0.1
            for one in victims:
                before = time.monotonic()
                in_time(one.in_turn(200, f"{one.policy} later", LIMIT))
                took = time.monotonic() - before
                assert took < 200 * DEADLINE / 10, f"200 checks took {took:.1f} s although the breaker was open"
            allowed = [check.allowed for check in victims[POLICIES.index("local")].in_turn(20, "few", FEW)]
            assert allowed == [True] * 5 + [False] * 15, "the stand-in limits"
        finally:
            end(site)
        back = time.monotonic()
        for one in victims:
            until("the store is asked again", lambda one=one: one.check("back", LIMIT).reason == "ok")  # type: ignore[misc]
            took = time.monotonic() - back
            assert took < BACK, f"the store was back for {took:.1f} s before {one.policy} knew"
            assert breaker_states(one.limiter) == {"closed"}
        for one in victims:
            in_time(one.history)
        forgets = fault == "killed" and isinstance(site.server, RedisServer)
        for key in {check.key for one in victims for check in one.history}:
            asked = [check for one in victims for check in one.history if check.key == key]
            used = site.used(prefix, key, FEW if key == "few" else LIMIT)
            assert used <= len(asked), f"{key}: {used} counted of {len(asked)} that were asked for"
            assert forgets or used >= len(admitted(asked)), f"{key}: {used} counted, and more were admitted"
        slow = sorted(seconds(waited))
        report(f"waited {median(slow) * 1000:.0f} ms (median), {slow[-1] * 1000:.0f} ms (longest)")
