"""A store that hangs, dies, refuses, stalls or closes within a reply costs each check its deadline at most.

The check is then answered by its policy; after a few failures the breaker opens; when the store is back, checks use it
again without intervention. A check whose reply was lost is counted at most once.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from threading import Event, Thread

import pytest

from integration.network.history import Check, admitted
from integration.network.sites import DEADLINE, LIMIT, Site
from integration.network.victims import KINDS, POLICIES, REASONS, Kind, Victim, breaker_states, victim
from stalls import Stalls

NOISE = 0.4
"""Seconds that a busy machine may add to a deadline."""
BACK = 3.0
"""Seconds within which a store that is back is asked again: the breaker's pause is one."""
FEW = "5/year"

Report = Callable[[str], None]

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


@pytest.fixture(scope="module", autouse=True)
def stalls() -> Iterator[None]:
    with _stalls:
        yield


_stalls = Stalls()


def took(check: Check) -> float:
    """Seconds, without those in which the machine was busy with others."""
    return _stalls.without(check.start, check.end)


def in_time(checks: Sequence[Check]) -> None:
    slowest = max(checks, key=took)
    whole = slowest.end - slowest.start
    assert took(slowest) < DEADLINE + NOISE, f"{whole * 1000:.0f} ms, without stalls {took(slowest) * 1000:.0f} ms"


def answered(one: Victim, key: str) -> None:
    """The store answers within a while, and without help."""
    start = time.monotonic()
    while one.check(key, LIMIT).reason != "ok":
        waited = _stalls.without(start, time.monotonic())
        assert waited < BACK, f"the store was back for {waited:.1f} s, and {one.policy} did not know"
        time.sleep(0.02)
    assert breaker_states(one.limiter) == {"closed"}


def counted_once(site: Site, history: Sequence[Check]) -> None:
    """The server has counted what it admitted, and each check whose reply was lost at most once."""
    for key in {check.key for check in history}:
        checks = [check for check in history if check.key == key]
        used = site.used(key, FEW if key == "few" else LIMIT)
        assert len(admitted(checks)) <= used <= len(checks), f"{key}: {used} counted of {len(checks)}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_store_that_fails(fault: str, kind: Kind, site: Site, report: Report) -> None:
    begin, end = FAULTS[fault]
    with ExitStack() as stack:
        victims = [stack.enter_context(victim(kind, site.url(), policy)) for policy in POLICIES]
        for one in victims:
            answered(one, "before")
        begin(site)
        try:
            first: list[Check] = []
            for one in victims:
                checks = [check for _ in range(4) for check in one.at_once(8, one.policy, LIMIT)]
                in_time(checks)
                assert {check.reason for check in checks} == {REASONS[one.policy]}
                assert {check.allowed for check in checks} == {one.policy != "closed"}
                assert breaker_states(one.limiter) <= {"open", "half-open"}, "it has failed often enough"
                first += checks[:8]
            if fault in WAITS:
                assert DEADLINE - 0.05 < median(seconds(first))
                assert median([took(check) for check in first]) < DEADLINE + 0.1
            for one in victims:
                before = time.monotonic()
                in_time(one.in_turn(200, f"{one.policy} later", LIMIT))
                passed = _stalls.without(before, time.monotonic())
                assert passed < 200 * DEADLINE / 10, f"200 checks took {passed:.1f} s although the breaker was open"
            allowed = [check.allowed for check in victims[POLICIES.index("local")].in_turn(20, "few", FEW)]
            assert allowed == [True] * 5 + [False] * 15, "the stand-in limits"
        finally:
            end(site)
        lost_all = fault == "killed" and site.forgets
        history = [check for one in victims for check in one.history if not (lost_all and check.reason == "ok")]
        for one in victims:
            answered(one, f"{one.policy} back")
        history += [check for one in victims for check in one.history if check.key.endswith("back")]
        in_time(history)
        counted_once(site, history)
        waited = sorted(seconds(first))
        report(f"waited {median(waited) * 1000:.0f} ms (median), {waited[-1] * 1000:.0f} ms (longest)")


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_replies(kind: Kind, site: Site) -> None:
    """Wherever a reply is cut: what may have been executed is not retried."""
    reasons = set()
    with victim(kind, site.url(), "closed") as one:
        for count in (*range(20), *range(20, 800, 8)):  # MariaDB says some hundred bytes before it commits
            answered(one, "between")
            site.proxy.cut_after(count)
            reasons.add(one.check("cut", LIMIT).reason)
            site.proxy.pass_all()
        assert reasons == {"ok", "fail_closed"}, "some answers were lost for good"
        counted_once(site, one.history)
        if site.forgets:
            cut = [check for check in one.history if check.key == "cut"]
            assert site.used("cut") == len(cut), "Redis has done all that it was told"
        for _ in range(3):
            site.proxy.cut_after(0)
            in_time(one.at_once(8, "cut in a row", LIMIT))
        site.proxy.pass_all()
        answered(one, "after")
        in_time(one.history)
        counted_once(site, one.history)


@pytest.mark.parametrize("kind", KINDS)
def test_slow_store_within_the_deadline(kind: Kind, site: Site) -> None:
    with victim(kind, site.url(deadline=10), "closed") as one:
        site.proxy.delay(0.05)
        checks = one.at_once(100, "slow", LIMIT)
        assert {check.reason for check in checks} == {"ok"}
        assert min(seconds(checks)) >= 0.05
        assert breaker_states(one.limiter) == {"closed"}
        assert site.used("slow") == 100


@pytest.mark.parametrize("kind", KINDS)
def test_connection_cuts_under_load(kind: Kind, site: Site, report: Report) -> None:
    """Connections are reset again and again, at any moment, while many check."""
    over = Event()

    def cut() -> None:
        while not over.wait(random.uniform(0.01, 0.03)):
            site.proxy.cut()

    with victim(kind, site.url(), "open") as one:
        answered(one, "before")
        cutting = Thread(target=cut)
        cutting.start()
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            in_time(one.at_once(16, "load", LIMIT))
        over.set()
        cutting.join()
        answered(one, "after")
        reasons = Counter(check.reason for check in one.history)
        assert set(reasons) == {"ok", "fail_open"}
        counted_once(site, one.history)
        lost = site.used("load") - len([check for check in admitted(one.history) if check.key == "load"])
        report(f"{lost} checks were counted although their answers were lost, of {reasons['ok']} admitted")
