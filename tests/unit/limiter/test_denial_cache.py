"""The denial cache: an attack does not reach the store, and nothing else changes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from crestgate import AsyncLimiter, ConfigError, Limit, Limiter, RateLimitExceeded
from crestgate.core.algorithms import build
from crestgate.limiter.denial_cache import MAX_DENIALS
from crestgate.runtime.clock import MachineClock
from crestgate.stores.port import Op
from fake_server import FakeServer, ServerClient

KEY = "key"
ALGORITHMS = (
    "token_bucket",
    "leaky_bucket",
    "fixed_window",
    "sliding_window_log",
    "sliding_window_counter",
    "gcra",
)


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def store(server: FakeServer) -> ServerClient:
    return ServerClient(server)


def empty(limiter: Limiter, limit: Limit | str, key: str = KEY) -> None:
    """Use all of a limit, and be denied once."""
    while limiter.check(key, limit).allowed:
        pass


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_attack_does_not_reach_the_store(algorithm: str, server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    limit = Limit(5, 600, algorithm=algorithm)
    empty(limiter, limit)
    calls = server.calls
    assert not any(limiter.check(KEY, limit).allowed for _ in range(1_000))
    assert server.calls == calls
    decisions = limiter.backend.local_decisions
    assert decisions is not None
    assert decisions.denied_locally == 1_000
    for _ in range(50):
        store.advance(0.1)
        assert not limiter.check(KEY, limit).allowed
    assert server.calls - calls <= 6, "one call a second"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("cost", [1, 2, 5])
def test_answers_are_those_of_the_store(algorithm: str, cost: int, server: FakeServer, store: ServerClient) -> None:
    cached, plain = Limiter(store), Limiter(store, denial_cache=False)
    limit = Limit(7, 3, algorithm=algorithm)
    empty(cached, limit)
    for _ in range(40):
        expected = plain.peek(KEY, limit, cost)
        decision = cached.check(KEY, limit, cost)
        assert (decision.allowed, decision.reason) == (expected.allowed, expected.reason)
        if not decision.allowed:
            assert decision.remaining == expected.remaining
            assert decision.retry_after is not None
            assert expected.retry_after is not None
            assert 0 <= decision.retry_after - expected.retry_after < 0.000_005
            assert decision.reset_after >= decision.retry_after
        store.advance(0.05)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_retry_after_admits(algorithm: str, server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    limit = Limit(10, 3, algorithm=algorithm)
    empty(limiter, limit)
    store.advance(0.01)
    decision = limiter.check(KEY, limit)
    assert not decision.allowed
    assert decision.retry_after is not None
    store.advance(decision.retry_after)
    assert limiter.check(KEY, limit).allowed


def test_retry_after_counts_from_the_answer_and_the_denial_from_the_request(server: FakeServer) -> None:
    store = ServerClient(server, offset=-50.0, delay=0.2)
    limiter = Limiter(store)
    limit = Limit(2, 4, algorithm="fixed_window")
    store.advance(4 - server.clock.now() % 4)
    empty(limiter, limit)
    decision = limiter.check(KEY, limit)
    until_end = 4 - server.clock.now() % 4
    assert decision.retry_after is not None
    assert until_end <= decision.retry_after <= until_end + 0.11


def test_denial_with_something_remaining_is_asked_again(server: FakeServer, store: ServerClient) -> None:
    limiter, other = Limiter(store), Limiter(ServerClient(server))
    limit = Limit(5, 600, algorithm="fixed_window")
    limiter.check(KEY, limit, 2)
    assert limiter.check(KEY, limit, 4).remaining == 3
    assert other.check(KEY, limit, 3).allowed
    assert limiter.check(KEY, limit, 4).remaining == 0


def test_in_flight_limits_are_never_cached(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    with limiter.hold(KEY, "1 concurrent"), pytest.raises(RateLimitExceeded):
        limiter.hold(KEY, "1 concurrent").__enter__()
    with limiter.hold(KEY, "1 concurrent"):
        pass


def test_reset_by_this_process_ends_it_at_once(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    empty(limiter, "5/hour")
    limiter.reset(KEY, "5/hour")
    assert limiter.check(KEY, "5/hour").allowed


def test_give_back_by_this_process_ends_it_at_once(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    reservation = limiter.reserve(KEY, "5/hour", 5)
    assert not limiter.check(KEY, "5/hour").allowed
    reservation.settle(3)
    assert limiter.check(KEY, "5/hour").allowed


def test_charge_by_this_process_ends_it_at_once(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    limit = Limit(5, 50)
    reservation = limiter.reserve(KEY, limit, 5)
    before = limiter.check(KEY, limit).retry_after
    reservation.settle(9)
    after = limiter.check(KEY, limit).retry_after
    assert before is not None
    assert after is not None
    assert after > before + 30


def test_raised_limit_ends_it_at_once(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    limit = Limit(5, 3_600, name="gold")
    empty(limiter, limit)
    assert limiter.check(KEY, Limit(6, 3_600, name="gold")).allowed


def test_reset_by_another_process_ends_it_within_a_second(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    empty(limiter, "5/hour")
    Limiter(ServerClient(server)).reset(KEY, "5/hour")
    assert not limiter.check(KEY, "5/hour").allowed
    store.advance(1.0)
    assert limiter.check(KEY, "5/hour").allowed


def test_answer_that_a_reset_overtakes_is_not_kept(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    empty(limiter, "5/hour")
    limiter.reset(KEY, "5/hour")
    Limiter(ServerClient(server)).check(KEY, "5/hour", 5)
    decisions = limiter.backend.local_decisions
    assert decisions is not None
    call = decisions.prepare([limiter.prepare(Op.TAKE, KEY, "5/hour")])
    replies = store.call(call.requests, 0.0)
    limiter.reset(KEY, "5/hour")
    decisions.finish(call, replies)
    assert limiter.check(KEY, "5/hour").allowed


def test_chain_is_denied_here_with_all_its_numbers(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    empty(limiter, "3/hour")
    first = limiter.check(KEY, ["3/hour", "100/day"])
    calls = server.calls
    second = limiter.check(KEY, ["3/hour", "100/day"])
    assert server.calls == calls
    assert second == first
    assert limiter.check(KEY, "100/day").allowed, "the other limit is not denied"


def test_several_checks_at_once(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    empty(limiter, "3/hour")
    calls = server.calls
    assert not any(limiter.check_many([(KEY, "3/hour")] * 3))
    assert server.calls == calls
    assert [d.allowed for d in limiter.check_many([(KEY, "3/hour"), ("other", "3/hour")])] == [False, True]


def test_asyncio(server: FakeServer, store: ServerClient) -> None:
    async def main() -> None:
        async with AsyncLimiter(store) as limiter:
            while (await limiter.check(KEY, "5/hour")).allowed:
                pass
            calls = server.calls
            assert not any([await limiter.check(KEY, "5/hour") for _ in range(100)])
            assert server.calls == calls
            await limiter.reset(KEY, "5/hour")
            assert (await limiter.check(KEY, "5/hour")).allowed

    asyncio.run(main())


def test_peek_and_cost_0_ask_the_store(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    empty(limiter, "5/hour")
    calls = server.calls
    assert limiter.check(KEY, "5/hour", 0).allowed
    assert not limiter.peek(KEY, "5/hour").allowed
    assert server.calls == calls + 2


def test_it_can_be_turned_off(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store, denial_cache=False)
    empty(limiter, "5/hour")
    calls = server.calls
    limiter.check(KEY, "5/hour")
    assert server.calls == calls + 1
    with pytest.raises(ConfigError, match="denial_cache must be True or False"):
        Limiter(store, denial_cache=1)  # type: ignore[arg-type]


def test_policy_answers_are_not_kept(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store, on_store_error="closed")
    store.down = True
    assert limiter.check(KEY, "5/hour").reason == "fail_closed"
    store.down = False
    assert limiter.check(KEY, "5/hour").reason == "ok"


def test_memory_is_bounded(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    limit = Limit(1, 3_600)
    for number in range(MAX_DENIALS + 500):
        limiter.check_many([(f"key {number}", limit), (f"key {number}", limit)])
        limiter.reset(f"reset {number}", limit)
    decisions = limiter.backend.local_decisions
    assert decisions is not None
    assert MAX_DENIALS // 2 < len(decisions.denials.denials) <= MAX_DENIALS
    assert len(decisions.denials.ended) <= MAX_DENIALS


def test_leased_limit_is_denied_here_too(server: FakeServer, store: ServerClient) -> None:
    limiter = Limiter(store)
    limit = Limit(20, 60, algorithm="fixed_window", lease=True)
    empty(limiter, limit)
    calls = server.calls
    assert not any(limiter.check(KEY, limit).allowed for _ in range(100))
    assert server.calls == calls
    assert not limiter.check(KEY, replace(limit, lease=False)).allowed


def test_clock_of_a_store_that_follows_its_server_does_not_move_what_is_known(tmp_path: Path) -> None:
    """Stores of SQL servers set their clock by each answer, forth and back. A denial must not last longer for it."""
    with Limiter(f"sqlite:///{tmp_path}/counters.db") as limiter:
        decisions = limiter.backend.local_decisions
        clock = limiter.store.clock
        assert decisions is not None
        assert isinstance(clock, MachineClock)
        before = decisions.ticks()
        clock.anchor -= 60_000_000
        assert decisions.ticks() >= before


def test_group_with_a_store_in_memory_is_asked(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/counters.db"
    for urls, decides in (([database, f"{database}2"], True), ([database, "memory://"], False)):
        with Limiter(urls) as limiter:
            assert (limiter.backend.local_decisions is not None) == decides
            assert limiter.backend.leases(build(Limit(5, 60, lease=True), "five")) == decides
