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
from integration.network.policy_limiters import (
    KINDS,
    POLICIES,
    REASONS,
    Kind,
    PolicyLimiter,
    breaker_states,
    open_limiter,
)
from integration.network.proxied_server import DEADLINE, LIMIT, ProxiedServer
from stalls import Stalls

NOISE = 0.4
"""Seconds that a busy machine may add to a deadline."""
RECOVERY_SECONDS = 3.0
"""Seconds within which a recovered store is used again: the breaker's pause is one."""
FEW = "5/year"

Report = Callable[[str], None]

FAULTS: dict[str, tuple[Callable[[ProxiedServer], object], Callable[[ProxiedServer], object]]] = {
    "hung": (lambda site: site.server.pause(), lambda site: site.server.resume()),
    "killed": (lambda site: site.server.kill(), lambda site: site.server.start()),
    "refused": (lambda site: site.proxy.refuse(), lambda site: site.proxy.pass_all()),
    "slow": (lambda site: site.proxy.delay(DEADLINE * 3), lambda site: site.proxy.pass_all()),
    "stalled": (lambda site: site.proxy.hang(), lambda site: site.proxy.pass_all()),
}
WAITS = ("hung", "slow", "stalled")
"""Faults without any error from the server: checks wait for the deadline."""


def seconds(checks: Sequence[Check]) -> list[float]:
    return [check.end - check.start for check in checks]


@pytest.fixture(scope="module", autouse=True)
def stalls() -> Iterator[None]:
    with _stalls:
        yield


_stalls = Stalls()


def duration(check: Check) -> float:
    """Seconds, without stalls of the machine."""
    return _stalls.without(check.start, check.end)


def assert_in_time(checks: Sequence[Check]) -> None:
    slowest = max(checks, key=duration)
    whole = slowest.end - slowest.start
    assert duration(slowest) < DEADLINE + NOISE, (
        f"{whole * 1000:.0f} ms, without stalls {duration(slowest) * 1000:.0f} ms"
    )


def wait_until_answered(caller: PolicyLimiter, key: str) -> None:
    """Wait until the store decides again, without intervention."""
    start = time.monotonic()
    while caller.check(key, LIMIT).reason != "ok":
        waited = _stalls.without(start, time.monotonic())
        assert waited < RECOVERY_SECONDS, f"the store was back for {waited:.1f} s, and {caller.policy} did not use it"
        time.sleep(0.02)
    assert breaker_states(caller.limiter) == {"closed"}


def assert_counted_once(site: ProxiedServer, history: Sequence[Check]) -> None:
    """The server has counted what it admitted, and each check whose reply was lost at most once."""
    for key in {check.key for check in history}:
        checks = [check for check in history if check.key == key]
        used = site.used(key, FEW if key == "few" else LIMIT)
        assert len(admitted(checks)) <= used <= len(checks), f"{key}: {used} counted of {len(checks)}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_store_that_fails(fault: str, kind: Kind, site: ProxiedServer, report: Report) -> None:
    begin, end = FAULTS[fault]
    with ExitStack() as stack:
        victims = [stack.enter_context(open_limiter(kind, site.url(), policy)) for policy in POLICIES]
        for caller in victims:
            wait_until_answered(caller, "before")
        begin(site)
        try:
            first: list[Check] = []
            for caller in victims:
                checks = [check for _ in range(4) for check in caller.check_concurrently(8, caller.policy, LIMIT)]
                assert_in_time(checks)
                assert {check.reason for check in checks} == {REASONS[caller.policy]}
                assert {check.allowed for check in checks} == {caller.policy != "closed"}
                assert breaker_states(caller.limiter) <= {"open", "half-open"}, "it has failed often enough to open"
                first += checks[:8]
            if fault in WAITS:
                assert DEADLINE - 0.05 < median(seconds(first))
                assert median([duration(check) for check in first]) < DEADLINE + 0.1
            for caller in victims:
                before = time.monotonic()
                assert_in_time(caller.check_sequentially(200, f"{caller.policy} later", LIMIT))
                passed = _stalls.without(before, time.monotonic())
                assert passed < 200 * DEADLINE / 10, f"200 checks took {passed:.1f} s although the breaker was open"
            allowed = [check.allowed for check in victims[POLICIES.index("local")].check_sequentially(20, "few", FEW)]
            assert allowed == [True] * 5 + [False] * 15, "the local fallback limits"
        finally:
            end(site)
        lost_all = fault == "killed" and site.loses_counters
        history = [check for caller in victims for check in caller.history if not (lost_all and check.reason == "ok")]
        for caller in victims:
            wait_until_answered(caller, f"{caller.policy} back")
        history += [check for caller in victims for check in caller.history if check.key.endswith("back")]
        assert_in_time(history)
        assert_counted_once(site, history)
        waited = sorted(seconds(first))
        report(f"waited {median(waited) * 1000:.0f} ms (median), {waited[-1] * 1000:.0f} ms (longest)")


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_replies(kind: Kind, site: ProxiedServer) -> None:
    """A reply cut at any byte: a request that may have been executed is not retried."""
    reasons = set()
    with open_limiter(kind, site.url(), "closed") as caller:
        for count in (*range(20), *range(20, 800, 8)):  # MariaDB sends some hundred bytes before it commits
            wait_until_answered(caller, "between")
            site.proxy.cut_after(count)
            reasons.add(caller.check("cut", LIMIT).reason)
            site.proxy.pass_all()
        assert reasons == {"ok", "fail_closed"}, "some replies were lost"
        assert_counted_once(site, caller.history)
        if site.loses_counters:
            cut = [check for check in caller.history if check.key == "cut"]
            assert site.used("cut") == len(cut), "Redis has executed every request"
        for _ in range(3):
            site.proxy.cut_after(0)
            assert_in_time(caller.check_concurrently(8, "cut in a row", LIMIT))
        site.proxy.pass_all()
        wait_until_answered(caller, "after")
        assert_in_time(caller.history)
        assert_counted_once(site, caller.history)


@pytest.mark.parametrize("kind", KINDS)
def test_slow_store_within_the_deadline(kind: Kind, site: ProxiedServer) -> None:
    with open_limiter(kind, site.url(deadline=10), "closed") as caller:
        site.proxy.delay(0.05)
        checks = caller.check_concurrently(100, "slow", LIMIT)
        assert {check.reason for check in checks} == {"ok"}
        assert min(seconds(checks)) >= 0.05
        assert breaker_states(caller.limiter) == {"closed"}
        assert site.used("slow") == 100


@pytest.mark.parametrize("kind", KINDS)
def test_connection_cuts_under_load(kind: Kind, site: ProxiedServer, report: Report) -> None:
    """Connections are reset repeatedly at random times under load."""
    stop_event = Event()

    def cut() -> None:
        while not stop_event.wait(random.uniform(0.01, 0.03)):
            site.proxy.cut()

    with open_limiter(kind, site.url(), "open") as caller:
        wait_until_answered(caller, "before")
        cutting = Thread(target=cut)
        cutting.start()
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert_in_time(caller.check_concurrently(16, "load", LIMIT))
        stop_event.set()
        cutting.join()
        wait_until_answered(caller, "after")
        reasons = Counter(check.reason for check in caller.history)
        assert set(reasons) == {"ok", "fail_open"}
        assert_counted_once(site, caller.history)
        lost = site.used("load") - len([check for check in admitted(caller.history) if check.key == "load"])
        report(f"{lost} checks were counted although their replies were lost, of {reasons['ok']} admitted")
