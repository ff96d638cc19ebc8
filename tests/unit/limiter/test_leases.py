"""Leases: what a process decides from slices, and that it never admits what the store would not."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.leases import simulate

from crestgate import AsyncLimiter, ConfigError, Limit, Limiter
from crestgate.core.algorithms import build
from crestgate.limiter.leases import MAX_LEASES, Lease
from crestgate.limiter.observer import LimiterCall, Observer
from crestgate.stores.factory import open_store
from crestgate.stores.port import Member, Op, Request
from crestgate.stores.sharded import ShardedStore
from crestgate.testing import FakeClock
from fake_server import FakeServer, ServerClient

WINDOW = Limit(100, 60, algorithm="fixed_window", lease=True)
BUCKET = Limit(100, 1, burst=50, lease=True)
KEY = "key"


def lease_of(limiter: Limiter | AsyncLimiter, limit: Limit = WINDOW, key: str = KEY) -> Lease:
    decisions = limiter.backend.local_decisions
    assert decisions is not None
    lease = decisions.table.find(Member(key, limiter.resolver.one(limit)[0], 1))
    assert lease is not None
    return lease


def usable(limiter: Limiter | AsyncLimiter, limit: Limit = WINDOW) -> int:
    return lease_of(limiter, limit).usable(limiter.store.clock.ticks())


def warm_up(limiter: Limiter, store: ServerClient, limit: Limit = WINDOW, checks: int = 12) -> int:
    """Check until slices are used; returns how many were admitted."""
    admitted = 0
    for _ in range(checks):
        store.advance(0.001)
        admitted += limiter.check(KEY, limit).allowed
    for _ in range(30):
        if usable(limiter, limit):
            return admitted
        store.advance(0.001)
        admitted += limiter.check(KEY, limit).allowed
    raise AssertionError("there is no slice")


def stored(server: FakeServer, limit: Limit = WINDOW) -> int:
    """What the counter has left, as somebody without leases sees it."""
    return Limiter(ServerClient(server)).peek(KEY, replace(limit, lease=False)).remaining


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def store(server: FakeServer) -> ServerClient:
    return ServerClient(server)


# -- declaration ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["leaky_bucket", "sliding_window_log", "sliding_window_counter", "concurrency"])
def test_other_algorithms_refuse_leases(algorithm: str) -> None:
    with pytest.raises(ConfigError, match="lease is not possible with") as caught:
        Limit(10, 60, algorithm=algorithm, lease=True)
    assert caught.value.field == "lease"


def test_lease_must_be_a_bool() -> None:
    with pytest.raises(ConfigError, match="lease must be true or false"):
        Limit(10, 60, lease=1)  # type: ignore[arg-type]


def test_leased_limit_has_the_same_counter(server: FakeServer, store: ServerClient) -> None:
    Limiter(store).check(KEY, WINDOW, 30)
    assert Limiter(store).check(KEY, replace(WINDOW, lease=False)).remaining == 69


def test_memory_ignores_leases() -> None:
    limiter = Limiter("memory://")
    bound = limiter.bind(WINDOW)
    assert bound.local is limiter.store
    assert limiter.backend.local_decisions is None
    with limiter.reserve(KEY, BUCKET, 40) as reservation:
        reservation.settle(10)
    assert limiter.peek(KEY, BUCKET).remaining >= 40, "and gives back"


# -- slices -----------------------------------------------------------------------------------------------------------


def test_slices_save_calls(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    limit = Limit(10_000, 60, algorithm="fixed_window", lease=True)
    for _ in range(1_000):
        store.advance(0.001)
        assert limiter.check(KEY, limit).allowed
    assert server.calls < 50
    decisions = limiter.backend.local_decisions
    assert decisions is not None
    assert decisions.leased_locally == 1_000 - server.calls


def test_whole_limit_is_admitted_exactly_once(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    decisions = [limiter.check(KEY, WINDOW) for _ in range(150)]
    assert [decision.allowed for decision in decisions] == [True] * 100 + [False] * 50
    assert [decision.remaining for decision in decisions[:100]] == list(range(99, -1, -1))


def test_slice_is_not_used_in_the_next_window(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    store.advance(60 - server.clock.now() % 60 - 0.1)  # the window ends soon
    warm_up(limiter, store)
    left = usable(limiter)
    store.advance(60 - server.clock.now() % 60 - 0.00002)
    assert left > 0
    assert usable(limiter) == 0, "it ends early, never late"
    store.advance(0.001)
    calls = server.calls
    limiter.check(KEY, WINDOW)
    assert server.calls == calls + 1
    assert stored(server) + usable(limiter) == 99


def test_slice_ends_by_when_its_request_was_sent(server: FakeServer) -> None:
    store = ServerClient(server, offset=7.0, delay=0.2)
    limiter = Limiter(store)
    store.advance(60 - server.clock.now() % 60 - 6)
    for _ in range(20):
        limiter.check(KEY, WINDOW)
    assert usable(limiter)
    ends_at = max(part.ends_at for part in lease_of(limiter).slices)
    end_of_window = (server.clock.ticks() // 60_000_000 + 1) * 60_000_000 + 7_000_000
    assert ends_at <= end_of_window - 100_000, "half of the round trip earlier at least"


def test_bucket_slice_drains_with_the_level(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    warm_up(limiter, store, BUCKET, 20)
    while server.clock.ticks() < lease_of(limiter, BUCKET).reset_at:
        level = 50 - stored(server, BUCKET)
        assert usable(limiter, BUCKET) <= level
        store.advance(0.01)
    assert usable(limiter, BUCKET) == 0
    admitted = sum(limiter.check(KEY, BUCKET).allowed for _ in range(100))
    assert admitted == 50, "a full bucket, and not a slice beside it"


@pytest.mark.parametrize("algorithm", ["token_bucket", "gcra"])
@pytest.mark.parametrize("count", [3, 60, 1000])
def test_slow_bucket_admits_all_of_its_burst(count: int, algorithm: str, store: ServerClient) -> None:
    """A slice drains in minutes, though it is used for a second at most."""
    limiter = Limiter(store)
    limit = Limit(count, 60, algorithm=algorithm, lease=True)
    assert sum(limiter.check(KEY, limit).allowed for _ in range(count + 100)) == count


def test_unused_slice_goes_back_when_it_has_ended(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    admitted = warm_up(limiter, store)
    assert stored(server) == 100 - admitted - usable(limiter)
    store.advance(1.1)
    assert limiter.backend.lease_sweeper is not None
    limiter.backend.lease_sweeper.sweep()
    assert stored(server) == 100 - admitted


def test_ended_slices_go_back_with_the_next_call_on_a_virtual_clock(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    admitted = warm_up(limiter, store)
    store.advance(1.1)
    for number in range(3):
        limiter.check(f"other {number}", WINDOW)
    assert stored(server) == 100 - admitted


def test_unused_slices_go_back_at_close(server: FakeServer, store: ServerClient) -> None:
    with Limiter(store) as limiter:
        admitted = warm_up(limiter, store)
    assert stored(server) == 100 - admitted


def test_unused_slices_go_back_at_aclose(server: FakeServer, store: ServerClient) -> None:
    async def main() -> int:
        async with AsyncLimiter(store) as limiter:
            admitted = 0
            for _ in range(20):
                store.advance(0.001)
                admitted += (await limiter.check(KEY, WINDOW)).allowed
            assert usable(limiter)
            return admitted

    admitted = asyncio.run(main())
    assert stored(server) == 100 - admitted


def test_crash_costs_only_the_slice(server: FakeServer, store: ServerClient) -> None:
    crashed = Limiter(store)
    admitted = warm_up(crashed, store)
    lost = usable(crashed)
    other = Limiter(ServerClient(server))
    assert sum(other.check(KEY, WINDOW).allowed for _ in range(200)) == 100 - admitted - lost
    store.advance(60)
    fresh = ServerClient(server)
    assert sum(Limiter(fresh).check(KEY, WINDOW).allowed for _ in range(200)) == 100


def test_nothing_is_taken_in_advance_near_the_limit(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    Limiter(ServerClient(server)).check(KEY, WINDOW, 97)
    for _ in range(3):
        store.advance(0.001)
        assert limiter.check(KEY, WINDOW).allowed
        assert usable(limiter) <= 1


def test_share_follows_what_others_take(server: FakeServer, store: ServerClient) -> None:
    limit = Limit(100_000, 60, algorithm="fixed_window", lease=True)
    limiter, other = Limiter(store), Limiter(ServerClient(server))
    sizes = []
    for step in range(3_000):
        store.advance(0.001)
        limiter.check(KEY, limit)
        if step > 1_500:
            other.check(KEY, replace(limit, lease=False), 30)
        if step in (1_500, 2_999):
            sizes.append(lease_of(limiter, limit).share)
    assert sizes[0] > 900 > 300 > sizes[1]


# -- other operations -------------------------------------------------------------------------------------------------


def test_peek_counts_what_is_left_here(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    admitted = warm_up(limiter, store)
    assert stored(server) < 100 - admitted
    assert limiter.peek(KEY, WINDOW).remaining == 100 - admitted


def test_reset_ends_the_slice(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    warm_up(limiter, store)
    limiter.reset(KEY, WINDOW)
    assert stored(server) == 100
    assert sum(limiter.check(KEY, WINDOW).allowed for _ in range(200)) == 100
    assert Limiter(ServerClient(server)).check(KEY, WINDOW).allowed is False


def test_slice_that_a_reset_overtakes_is_not_used(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    warm_up(limiter, store)
    while usable(limiter):
        store.advance(0.001)
        limiter.check(KEY, WINDOW)
    decisions = limiter.backend.local_decisions
    assert decisions is not None
    store.advance(0.05)
    call = decisions.prepare([limiter.prepare(Op.TAKE, KEY, WINDOW)])
    assert call.refills
    replies = store.call(call.requests, 0.0)
    limiter.reset(KEY, WINDOW)
    decisions.finish(call, replies)
    assert not decisions.table.leases


def test_changed_limit_ends_the_slice(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    named = replace(WINDOW, name="gold")
    for _ in range(20):
        store.advance(0.001)
        limiter.check(KEY, named)
    raised = Limit(200, 60, algorithm="fixed_window", name="gold", lease=True)
    limiter.check(KEY, raised)
    limiter.check("other", raised)
    plain = replace(raised, lease=False)
    assert Limiter(ServerClient(server)).peek(KEY, plain).remaining == 179


def test_cost_above_the_slice_is_decided_exactly(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    admitted = warm_up(limiter, store)
    assert 0 < usable(limiter)
    assert not limiter.check(KEY, WINDOW, 101 - admitted).allowed
    assert limiter.check(KEY, WINDOW, 100 - admitted).allowed, "what is left here and there counts together"
    assert stored(server) == 0


def test_cost_0_takes_nothing(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    warm_up(limiter, store)
    before = usable(limiter)
    assert limiter.check(KEY, WINDOW, 0).allowed
    assert usable(limiter) == before


def test_chain_of_leased_limits_is_all_or_nothing(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    small = Limit(20, 60, algorithm="fixed_window", name="small", lease=True)
    large = Limit(1_000, 60, algorithm="fixed_window", name="large", lease=True)
    admitted = 0
    for _ in range(200):
        store.advance(0.001)
        admitted += limiter.check(KEY, [small, large]).allowed
    assert admitted == 20
    limiter.close()
    assert stored(server, large) == 980, "denied requests took nothing"


def test_chain_with_a_plain_limit_asks_the_store(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    warm_up(limiter, store)
    left = 100 - stored(server) + usable(limiter)
    calls = server.calls
    decision = limiter.check(KEY, [WINDOW, "3/hour"])
    assert decision.allowed
    assert server.calls == calls + 1
    assert left
    for _ in range(5):
        limiter.check(KEY, [WINDOW, "3/hour"])
    limiter.close()


def test_chain_is_not_denied_for_units_that_are_here(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    warm_up(limiter, store)
    Limiter(ServerClient(server)).check(KEY, WINDOW, stored(server))
    assert stored(server) == 0 < usable(limiter)
    assert limiter.check(KEY, [WINDOW, "3/hour"]).allowed


def test_check_many_is_decided_here_as_a_whole(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    warm_up(limiter, store)
    calls, here = server.calls, usable(limiter)
    assert here >= 2
    assert all(limiter.check_many([(KEY, WINDOW), (KEY, WINDOW)]))
    assert server.calls == calls
    assert all(limiter.check_many([(KEY, WINDOW)] * (here + 1)))
    assert server.calls == calls + 1


def test_reservation_of_a_window_gives_back_to_the_store(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    admitted = warm_up(limiter, store)
    with limiter.reserve(KEY, WINDOW, 2) as reservation:
        reservation.settle(1)
    limiter.close()
    assert stored(server) == 100 - admitted - 1


def test_reservation_of_a_past_window_gives_nothing_to_this_one(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    warm_up(limiter, store)
    reservation = limiter.reserve(KEY, WINDOW, 1)
    store.advance(60)
    assert sum(limiter.check(KEY, WINDOW).allowed for _ in range(50)) == 50
    reservation.release()
    assert sum(limiter.check(KEY, WINDOW).allowed for _ in range(100)) == 50


def test_bucket_keeps_what_is_given_back_in_this_process(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    reservation = limiter.reserve(KEY, BUCKET, 40)
    store.advance(0.1)
    level = 50 - stored(server, BUCKET)
    reservation.release()
    assert 50 - stored(server, BUCKET) == level, "the level is what the slices of others count on"
    assert 28 <= usable(limiter, BUCKET) <= 30, "40 less what has drained in 0.1 s"
    assert limiter.check(KEY, BUCKET, 25).allowed


def test_give_back_is_worth_no_more_than_what_cannot_have_drained(server: FakeServer) -> None:
    store = ServerClient(server, offset=-100.0)
    limiter = Limiter(store)
    reservation = limiter.reserve(KEY, BUCKET, 40)
    store.advance(0.39)
    reservation.release()
    assert usable(limiter, BUCKET) <= 1


def test_stored_reservation_remembers_the_lease(tmp_path: Path) -> None:
    """Any process may settle it, and again if it gets no answer: so its units only refill."""
    clock = FakeClock(1_700_000_000)
    with Limiter(f"sqlite:///{tmp_path}/counters.db", clock=clock) as limiter:
        reservation = limiter.reserve(KEY, [(BUCKET, 40)], ttl=60)
        assert reservation.id is not None
        limiter.reservation(reservation.id).release()
        assert limiter.peek(KEY, replace(BUCKET, lease=False)).remaining == 10
        assert not limiter.check(KEY, BUCKET, 11).allowed


def test_closing_a_limiter_that_shares_a_backend_leaves_its_leases(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    warm_up(limiter, store)
    Limiter.sharing(limiter).close()
    asyncio.run(AsyncLimiter.sharing(limiter).aclose())
    assert usable(limiter)


def test_sweeper_gives_back_in_the_background(tmp_path: Path) -> None:
    with Limiter(f"shared:///{tmp_path}/counters") as limiter:
        limit = Limit(10_000, 3_600, algorithm="fixed_window", lease=True)
        deadline = time.monotonic() + 60
        limiter.check(KEY, limit)
        while not usable(limiter, limit):
            limiter.check(KEY, limit)
            time.sleep(0.001)
        admitted = 10_000 - limiter.peek(KEY, limit).remaining
        while 10_000 - limiter.peek(KEY, replace(limit, lease=False)).remaining != admitted:
            assert time.monotonic() < deadline, "not given back"
            time.sleep(0.05)


@pytest.mark.parametrize("scheme", ["shared", "sqlite"])
def test_shared_stores_do_not_lower_leased_buckets(scheme: str, tmp_path: Path) -> None:
    store = open_store(f"{scheme}:///{tmp_path}/counters", FakeClock(1_700_000_000))
    for limit, left in ((BUCKET, 10), (replace(BUCKET, lease=False, name="plain"), 50)):
        algorithm = build(limit, limit.name or "leased")
        tick = store.apply([Request(Op.TAKE, [Member(KEY, algorithm, 40)])])[0][0].tick
        store.apply([Request(Op.GIVE_BACK, [Member(KEY, algorithm, 40, True, tick, 40)])])
        assert store.apply([Request(Op.PEEK, [Member(KEY, algorithm, 0)])])[0][0].decision.remaining == left
    store.close()


def test_acquire_waits_for_a_leased_limit(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    for _ in range(60):
        limiter.check(KEY, BUCKET)
    store.server.clock = store.clock  # so that waiting moves both
    server.inner.clock = store.clock
    assert limiter.acquire(KEY, BUCKET, 5, timeout=10).allowed


# -- failures ---------------------------------------------------------------------------------------------------------


def test_unanswered_slice_is_never_used(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store, on_store_error="closed")
    warm_up(limiter, store)
    while usable(limiter):
        store.advance(0.001)
        limiter.check(KEY, WINDOW)
    store.advance(0.02)
    store.lost = 1
    before = stored(server)
    assert limiter.check(KEY, WINDOW).reason == "fail_closed"
    assert stored(server) < before - 1, "the store has charged it"
    assert usable(limiter) == 0
    assert limiter.check(KEY, WINDOW).reason == "ok"


def test_slice_outlives_the_store(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store, on_store_error="closed")
    warm_up(limiter, store)
    here = usable(limiter)
    store.down = True
    reasons = [limiter.check(KEY, WINDOW).reason for _ in range(here + 2)]
    assert reasons == ["ok"] * here + ["fail_closed"] * 2
    limiter.close()  # which cannot give back, and does not fail


def test_cancelled_caller_leaves_no_refill_behind(server: FakeServer, store: ServerClient) -> None:
    async def main() -> None:
        limiter = AsyncLimiter(store)
        for _ in range(12):
            store.advance(0.001)
            await limiter.check(KEY, WINDOW)
        while usable(limiter):
            store.advance(0.001)
            await limiter.check(KEY, WINDOW)
        store.advance(0.05)
        before = stored(server)
        store.held = []
        task = asyncio.create_task(limiter.check(KEY, WINDOW))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert lease_of(limiter).refilling
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not lease_of(limiter).refilling
        (held,) = store.held
        store.held = None
        store.begin(*held)
        await asyncio.sleep(0.01)
        assert usable(limiter) == 0
        assert stored(server) == before, "what it has taken was given back"

    asyncio.run(main())


def test_child_does_not_use_the_slices_of_its_parent(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    warm_up(limiter, store)
    reader, writer = os.pipe()
    if not (child := os.fork()):
        decisions = limiter.backend.local_decisions
        os.write(writer, b"none" if decisions is not None and not decisions.table.leases else b"some")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 4) == b"none"
    assert usable(limiter)


def test_node_that_charged_before_a_denial_leaves_a_slice() -> None:
    """On several nodes, the leased bucket of all users is not emptied by one user who is denied elsewhere."""
    store = ShardedStore({name: ServerClient(FakeServer()) for name in "ab"})
    limiter = Limiter(store, denial_cache=False)
    everyone, user = replace(BUCKET, name="everyone"), Limit(1, 60, name="one")
    limiter.bind(everyone)
    keys = [f"key {number}" for number in range(50)]
    first = next(key for key in keys if store.node_of(key) == 0)  # which is asked first
    second = next(key for key in keys if store.node_of(key) == 1)
    algorithms = limiter.resolver.one(everyone)[0], limiter.resolver.one(user)[0]
    allowed = []
    for _ in range(10):
        members = [Member(first, algorithms[0], 1), Member(second, algorithms[1], 1)]
        allowed += limiter.decide([limiter.prepare_counters(Op.TAKE, members)])
    assert [decision.allowed for decision in allowed] == [True] + [False] * 9
    assert limiter.peek(first, everyone).remaining == 49


def test_observer_sees_decisions_and_calls(server: FakeServer, store: ServerClient) -> None:
    class Counting(Observer):
        def __init__(self) -> None:
            self.decisions = 0
            self.batches = 0

        def called(self, call: LimiterCall) -> None:
            self.decisions += len(call.checks)

        def batch_sent(self, size: int) -> None:
            self.batches += 1

    observer = Counting()
    limiter = Limiter(store, observer=observer)
    for _ in range(60):
        store.advance(0.001)
        limiter.check(KEY, WINDOW)
    assert observer.decisions == 60
    assert observer.batches == server.calls < 40


def test_table_is_bounded(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    for number in range(MAX_LEASES + 10):
        limiter.check(f"key {number}", WINDOW)
    decisions = limiter.backend.local_decisions
    assert decisions is not None
    assert len(decisions.table.leases) == MAX_LEASES
    store.advance(2)
    for number in range(MAX_LEASES // 2 + 10):
        limiter.check(f"new {number}", WINDOW)
    assert len(decisions.table.leases) < MAX_LEASES


def test_local_store_on_files_leases(tmp_path: Path) -> None:
    clock = FakeClock(1_700_000_000)
    url = f"shared:///{tmp_path}/counters"
    with Limiter(url, clock=clock) as limiter, Limiter(url, clock=clock) as other:
        admitted = 0
        for _ in range(200):
            clock.advance(0.001)
            admitted += limiter.check(KEY, WINDOW).allowed
            admitted += other.check(KEY, WINDOW).allowed
        assert admitted == 100


def test_plain_limits_take_the_same_path_as_ever(tmp_path: Path) -> None:
    for url in ("memory://", f"shared:///{tmp_path}/counters"):
        with Limiter(url) as limiter:
            backend = limiter.backend
            assert limiter.bind("5/second").local is limiter.store
            assert backend.local_decisions is None
            assert backend.apply == limiter.store.apply


# -- the simulation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fixed_window", "token_bucket"])
@pytest.mark.parametrize(("instances", "load"), [(1, "bursty"), (10, "even"), (100, "skewed")])
def test_simulated_fleet_uses_the_limit_and_no_more(algorithm: str, instances: int, load: str) -> None:
    cell = simulate(algorithm, instances, load, demand=2.0, delay=0.001, windows=1, rate=300)
    assert not cell.exceeded
    assert 0.95 <= cell.used <= 1.0
    assert cell.saved > 0.1
