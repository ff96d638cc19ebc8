"""A flood of sliding logs neither erases nor delays the logs of others, and costs no more per request.

The batch is that of the attack: 1,000 checks of 10 counters each, every one of them a new sliding log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from crestgate import Limit, Limiter, StoreError
from crestgate.core.algorithms import build
from crestgate.stores.port import Member, Op, PartialStoreError, Request
from crestgate.stores.shared import SharedStore
from crestgate.stores.shared.arena import MAX_PROBES, MAX_SEARCHES
from crestgate.testing import FakeClock
from integration.service.service_process import Service
from security.bystander import Bystander, Control, unharmed

EXHAUSTED = "5/day using sliding_window_log"
FLOOD = "9/d using sliding_window_log"
LARGE = "1000/day using sliding_window_log"
CHECKS = 1_000
COUNTERS = 10


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[SharedStore]:
    made = SharedStore(str(tmp_path / "counters"), clock=clock)
    yield made
    made.close()


@pytest.fixture
def small_store(tmp_path: Path, clock: FakeClock) -> Iterator[SharedStore]:
    made = SharedStore(str(tmp_path / "counters"), max_keys=6_000, clock=clock)
    yield made
    made.close()


def batch(first: int, limit: str, checks: int = CHECKS) -> list[Request]:
    algorithm = build(Limit.parse(limit), limit)
    members = [Member(f"k{first + i}", algorithm, 1) for i in range(checks * COUNTERS)]
    return [Request(Op.TAKE, members[i : i + COUNTERS]) for i in range(0, len(members), COUNTERS)]


def test_flood_of_small_logs_evicts_no_counter(
    store: SharedStore, clock: FakeClock, report: Callable[..., None]
) -> None:
    """Three such batches, 30,000 logs, in a file for 50,000 counters."""
    limiter = Limiter(store, on_store_error="closed")
    assert [limiter.check("somebody", EXHAUSTED).allowed for _ in range(6)] == [True] * 5 + [False]
    for first in range(0, 3 * CHECKS * COUNTERS, CHECKS * COUNTERS):
        clock.advance(1)
        replies = store.apply(batch(first, FLOOD))
        assert all(outcome.decision.allowed for reply in replies for outcome in reply)
    assert store.arena.probes == 0
    assert limiter.check("somebody", EXHAUSTED).reason == "limited"
    algorithm = build(Limit.parse(FLOOD), FLOOD)
    peeks = store.apply([Request(Op.PEEK, [Member(f"k{i}", algorithm, 1)]) for i in range(0, 30_000, 100)])
    assert {reply[0].decision.remaining for reply in peeks} == {8}, "all logs of the flood exist, too"
    report("30,000 small logs: 0 owner words looked at, 0 logs evicted")


def test_flood_of_large_logs_is_refused_with_bounded_work(
    small_store: SharedStore, clock: FakeClock, report: Callable[..., None]
) -> None:
    """Logs that outgrow their ring until the region is full: the rest fails, and no existing log is erased."""
    store, checks = small_store, 300
    limiter = Limiter(store, on_store_error="closed")
    for _ in range(40):
        clock.advance(0.001)
        assert limiter.check("somebody", "40/day using sliding_window_log").allowed
    for _ in range(11):
        clock.advance(1)
        store.apply(batch(0, LARGE, checks))
    assert store.arena.probes == 2, "only one log has outgrown its ring so far"
    clock.advance(1)
    with pytest.raises(PartialStoreError) as error:
        store.apply(batch(0, LARGE, checks))
    refused = sum(isinstance(reply[0], StoreError) for reply in error.value.outcomes)
    taken, looks = checks - refused, store.arena.probes - 2
    assert 0 < refused <= store.arena.failures
    assert taken > store.geometry.blocks // COUNTERS * 9 // 10
    assert looks <= 2 * checks * COUNTERS + MAX_SEARCHES * MAX_PROBES, "of the whole batch"
    clock.advance(1)
    assert limiter.check("somebody", "40/day using sliding_window_log").reason == "limited"
    assert limiter.peek("somebody", "40/day using sliding_window_log").remaining == 0
    report(f"chains of 10 large logs: {taken} admitted, {refused} refused, {looks} looks for a batch of {checks}")


def test_inline_logs_leave_room_for_rules(small_store: SharedStore, clock: FakeClock) -> None:
    """Callers fill all the space for inline limits: limits of rules and plans still have theirs, and deny."""
    store = small_store
    stranger = build(Limit.parse(LARGE), f"inline|{LARGE}", "inline")
    stranger.inline = True
    for _ in range(12):
        clock.advance(1)
        for i in range(0, store.geometry.blocks, 100):
            requests = [Request(Op.TAKE, [Member(f"k{j}", stranger, 1)]) for j in range(i, i + 100)]
            with suppress(PartialStoreError):
                store.apply(requests)
    assert store.arena.failures > 0, "there was no more room for them"
    rule = Limiter(store)
    reasons = []
    for _ in range(60):
        clock.advance(0.001)
        reasons.append(rule.check("somebody", "50/day using sliding_window_log").reason)
    assert reasons == ["ok"] * 50 + ["limited"] * 10


def body(first: int) -> dict[str, object]:
    checks = [
        {"counters": [{"key": f"k{first + i * COUNTERS + j}", "limit": FLOOD} for j in range(COUNTERS)]}
        for i in range(CHECKS)
    ]
    return {"checks": checks}


def test_flood_over_http_affects_no_other_caller(serve: Callable[..., Service], report: Callable[..., None]) -> None:
    """An exhausted caller stays denied, and others wait no longer than usual."""
    service = serve()
    one = {"checks": [{"counters": [{"key": "somebody", "limit": EXHAUSTED}]}]}
    with (
        httpx.Client(base_url=service.url, timeout=120) as client,
        Bystander(service) as bystander,
        Control() as control,
    ):

        def check() -> tuple[bool, str]:
            (decision,) = client.post("/api/v1/check/batch", json=one).raise_for_status().json()["decisions"]
            return decision["allowed"], decision["reason"]

        assert [check()[0] for _ in range(6)] == [True] * 5 + [False]
        start = time.monotonic()
        time.sleep(1)  # real requests in real time: there is no other clock to drive
        middle = time.monotonic()
        for first in (0, 10_000):
            flood = client.post("/api/v1/check/batch", json=body(first))
            assert flood.status_code == 200, flood.text[:200]
        end = time.monotonic()
        assert check() == (False, "limited")
        metrics = client.get("/metrics").text
        assert "crestgate_store_logs_full_total 0.0" in metrics
        assert "crestgate_store_errors_total 0.0" in metrics
    figures = f"two batches of 10,000 sliding logs in {end - middle:.1f} s"
    waits = bystander.waits(start, middle), bystander.waits(middle, end), control.waits(middle, end)
    report(f"{figures}: {unharmed(*waits)}")
