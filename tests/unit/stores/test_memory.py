"""The memory store's bounds: what is evicted when it is full."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate import Limiter
from crestgate.core.state import ListLog
from crestgate.stores.memory import MemoryStore
from crestgate.testing import FakeClock
from example_counts import examples

HOURLY = "5/hour using fixed_window"
SHORT = "5/second using fixed_window"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


def limiter_of(clock: FakeClock, max_keys: int) -> tuple[Limiter, MemoryStore]:
    store = MemoryStore(max_keys, clock)
    return Limiter(store), store


def used(limiter: Limiter, key: str, limit: str = HOURLY) -> int:
    return 5 - limiter.peek(key, limit, cost=0).remaining


def test_least_recently_used_is_evicted_first(clock: FakeClock) -> None:
    limiter, store = limiter_of(clock, 3)
    for key in ("a", "b", "c"):
        limiter.check(key, HOURLY)
    limiter.check("a", HOURLY)
    limiter.check("d", HOURLY)
    assert [used(limiter, key) for key in "abcd"] == [2, 0, 1, 1]
    assert store.table.size == 3


def test_denied_request_counts_as_use(clock: FakeClock) -> None:
    limiter, _ = limiter_of(clock, 2)
    limiter.check("attacker", HOURLY, cost=5)
    limiter.check("b", HOURLY)
    assert not limiter.check("attacker", HOURLY).allowed
    limiter.check("c", HOURLY)
    assert not limiter.check("attacker", HOURLY).allowed, "a denied counter must not be evicted first"


def test_expired_are_evicted_before_the_least_recently_used(clock: FakeClock) -> None:
    limiter, store = limiter_of(clock, 1000)
    for number in range(500):
        limiter.check(f"long{number}", HOURLY)
    for number in range(500):
        limiter.check(f"short{number}", SHORT)
    clock.advance(2)
    for number in range(500):
        limiter.check(f"new{number}", HOURLY)
    assert all(used(limiter, f"long{number}") == 1 for number in range(500))
    assert store.table.size == 1000


def test_expired_counters_are_swept(clock: FakeClock) -> None:
    limiter, store = limiter_of(clock, 100_000)
    for number in range(1000):
        limiter.check(f"short{number}", SHORT)
    clock.advance(60)
    for number in range(600):
        limiter.check(f"new{number}", HOURLY)
    assert store.table.size == 600, "each insertion checks two counters"


def test_chain_longer_than_max_keys_is_decided(clock: FakeClock) -> None:
    limiter, store = limiter_of(clock, 2)
    chain = [f"{count}/hour" for count in range(3, 8)]
    assert [limiter.check("k", chain).allowed for _ in range(2)] == [True, True]
    for key in "abc":
        limiter.check(key, HOURLY)
    assert store.table.size == 2


def test_chain_does_not_evict_its_own_counters(clock: FakeClock) -> None:
    limiter, _ = limiter_of(clock, 3)
    limiter.check("k", "5/hour")
    limiter.check("other", "5/hour")
    limiter.check("another", "5/hour")
    decision = limiter.check("k", ["9/hour", "5/hour"])
    assert [part.remaining for part in decision.parts] == [8, 3]
    assert [part.remaining for part in limiter.peek("k", ["9/hour", "5/hour"], cost=0).parts] == [8, 3]


def test_removed_counters_are_freed_immediately(clock: FakeClock) -> None:
    """No cycles: a flood must not wait for the garbage collector."""
    limiter, store = limiter_of(clock, 10)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for number in range(5000):
            limiter.check(f"k{number}", HOURLY)
        assert len(gc.get_objects()) - before < 500
    finally:
        gc.enable()
    assert store.table.size == 10
    assert len(store.table.due_times) <= 16


def test_bookkeeping_is_bounded(clock: FakeClock) -> None:
    """A large burst expires over a long time: its expiry rings must not outlive their entries."""
    limiter, store = limiter_of(clock, 100)
    for number in range(20_000):
        limiter.check(f"k{number}", "1/second burst 1000000", cost=1 + number * 7919 % 1_000_000)
    for count in range(1, 5000):
        limiter.check("k", f"{count}/hour")
    assert len(store.table.due) <= 100
    assert len(store.table.due_times) <= 300


def test_given_back_log_does_not_grow(clock: FakeClock) -> None:
    limiter, store = limiter_of(clock, 10)
    limit = "5/hour using sliding_window_log"
    limiter.check("k", limit)
    for _ in range(1000):
        clock.advance(0.001)
        with limiter.reserve("k", limit, cost=3) as reservation:
            reservation.settle(0)
    entry = store.table.find(limit, "k")
    assert entry is not None
    assert isinstance(entry.log, ListLog)
    assert entry.log.entries() == [(1_700_000_000_000_000, 1)]


def test_signal_that_raises_leaves_no_lock_behind() -> None:
    class Interrupt(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        limiter = Limiter("memory://")
        for _ in range(200):
            with contextlib.suppress(Interrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                while True:
                    limiter.check("k", "5/hour")
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers: list[bool] = []
        thread = threading.Thread(target=lambda: answers.append(limiter.check("other", "5/hour").allowed), daemon=True)
        thread.start()
        thread.join(10)
        assert answers == [True]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_unused_names_are_removed(clock: FakeClock) -> None:
    limiter, store = limiter_of(clock, 10)
    for count in range(1, 1001):
        limiter.check("k", f"{count}/hour")
    assert len(store.table.names) == 10


def test_store_is_garbage_collected(clock: FakeClock) -> None:
    class Watched(FakeClock):
        pass

    watched = Watched()
    reference = weakref.ref(watched)
    limiter = Limiter("memory://", clock=watched)
    limiter.check("k", "5/hour")
    limiter.close()
    del limiter, watched
    gc.collect()
    assert reference() is None


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from((HOURLY, SHORT)), st.sampled_from((0, 0, 1, 2))))
)
def test_matches_a_plain_lru_list(script: list[tuple[str, str, int]]) -> None:
    """Which counters survive, compared with a simple LRU list."""
    clock = FakeClock(1_700_000_000)
    limiter, store = limiter_of(clock, 4)
    recent: list[tuple[str, str]] = []
    for key, limit, pause in script:
        clock.advance(pause)
        limiter.check(key, limit)
        if (key, limit) in recent:
            recent.remove((key, limit))
        recent.append((key, limit))
        live = {(e.key, name) for name, keys in store.table.names.items() for e in keys.values()}
        assert len(live) <= 4
        assert (key, limit) in live
        hourly = [counter for counter in recent if counter[1] == HOURLY]
        if all(limit == HOURLY for _, limit in recent):
            assert live == set(hourly[-4:])


def test_threads_and_a_full_store(clock: FakeClock) -> None:
    limiter, store = limiter_of(clock, 50)

    def hammer(name: str) -> None:
        for number in range(2000):
            limiter.check(f"{name}{number % 70}", ["5/hour", "9/minute using sliding_window_log"])

    threads = [threading.Thread(target=hammer, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = [entry for keys in store.table.names.values() for entry in keys.values()]
    assert len(entries) == store.table.size == 50
    ring = []
    entry = store.table.recent.newer
    while entry is not store.table.recent:
        ring.append(entry)
        entry = entry.newer
    assert {id(e) for e in ring} == {id(e) for e in entries}
