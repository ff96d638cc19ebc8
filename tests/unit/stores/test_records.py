"""Records in memory: bounded, apart from the counters, the oldest going first."""

from __future__ import annotations

from headgate import Limit
from headgate.core.algorithms import build
from headgate.stores.memory import MemoryStore
from headgate.stores.port import ONCE_US, Member, Once, Op, Request
from headgate.stores.records import OVERHEAD, MemoryRecords, grouped
from headgate.testing import FakeClock

FIVE = build(Limit.parse("5/hour"), "limit")
BODY = bytes(16)
NOW = 1_700_000_000_000_000


def take(key: str, once: Once | None = None) -> Request:
    return Request(Op.TAKE, [Member(key, FIVE, 1)], once)


def test_a_batch_falls_into_groups_that_stand_together() -> None:
    one, two = Once("n", BODY, b""), Once("n", BODY, b"")
    batch = [
        take("a"),
        take("b"),
        take("c", one),
        take("d", one),
        take("e", two),
        take("f"),
        take("g", one),
        Request(Op.CLAIM, [], one),
        Request(Op.RELEASE, [], one),
        take("h", one),
    ]
    assert grouped(batch) == [batch[:2], batch[2:4], batch[4:5], batch[5:6], *([request] for request in batch[6:])]
    assert grouped([]) == []


def test_there_is_room_for_so_many_bytes_and_the_oldest_goes_first() -> None:
    records = MemoryRecords(most_bytes=3 * (OVERHEAD + 101))
    for name in "abcd":
        records.keep(name, bytes(100), NOW)
    assert [records.find(name, NOW) is not None for name in "abcd"] == [False, True, True, True]
    records.keep("b", bytes(99), NOW)
    records.keep("e", bytes(100), NOW)
    assert [records.find(name, NOW) is not None for name in "abcde"] == [False, True, False, True, True]
    assert records.bytes <= records.most_bytes
    records.keep("long", bytes(10_000), NOW)
    assert list(records.kept) == ["long"], "what is kept last is kept in any case"
    records.forget("long")
    assert records.bytes == 0


def test_what_has_expired_goes_with_the_next_that_comes() -> None:
    records = MemoryRecords()
    for number in range(1000):
        records.keep(f"old {number}", bytes(50), NOW)
    records.keep("new", b"", NOW + ONCE_US)
    assert list(records.kept) == ["new"]


def test_a_clock_that_is_set_back_forgets_nothing() -> None:
    records = MemoryRecords()
    records.keep("n", b"kept", NOW)
    assert records.find("n", NOW - 60_000_000) == b"kept"
    assert records.find("n", NOW - ONCE_US) is None, "but what lies in a far future would never expire"


def test_a_flood_of_names_costs_no_counter() -> None:
    store = MemoryStore(max_keys=10, clock=FakeClock(1_700_000_000))
    store.records.most_bytes = 100_000
    for key in "abcdefghij":
        store.apply([take(key)])
    for number in range(2000):
        store.apply([take("a", Once(f"n{number}", BODY, b"note"))])
    assert store.table.size == 10
    assert store.records.bytes <= 100_000
    last = Once("n1999", BODY, b"")
    store.apply([take("a", last)])
    assert last.kept is not None


def test_record_that_may_have_been_dropped_is_not_decided_anew() -> None:
    clock = FakeClock(1_700_000_000)
    store = MemoryStore(clock=clock)
    store.records.most_bytes = 100_000
    store.apply([take("a", Once("settled", BODY, b"", NOW))])
    clock.advance(1)
    later = NOW + 1_000_000
    for number in range(200):
        store.apply([take("b", Once(f"n{number}", BODY, b""))])
    assert store.records.find("settled", later) is not None, "there was room for all"
    for number in range(200, 2000):
        store.apply([take("b", Once(f"n{number}", BODY, b""))])
    for name, since_us in (("settled", NOW), ("never seen", NOW)):
        again = Once(name, BODY, b"", since_us)
        assert store.apply([take("a", again)]) == [[]]
        assert (again.kept, again.pending, again.dropped) == (None, True, True)
    clock.advance(1)
    fresh = Once("later", BODY, b"", later + 1_000_000)
    assert store.apply([take("a", fresh)])[0][0].decision.allowed
    assert not fresh.dropped, "records of its time are all there"
    anew = Once("settled", BODY, b"")
    assert store.apply([take("a", anew)])[0][0].decision.allowed


def test_record_that_has_expired_was_not_dropped() -> None:
    records = MemoryRecords()
    records.keep("old", b"", NOW)
    records.keep("new", b"", NOW + ONCE_US)
    assert list(records.kept) == ["new"]
    assert records.dropped_until("old", NOW + ONCE_US) is None


def test_closing_forgets_them() -> None:
    store = MemoryStore()
    store.apply([take("a", Once("n", BODY, b""))])
    store.close()
    assert store.records.kept == {}
