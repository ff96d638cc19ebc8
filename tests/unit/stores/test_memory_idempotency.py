"""Records in memory: bounded, separate from the counters, the oldest dropped first."""

from __future__ import annotations

from crestgate import Limit
from crestgate.core.algorithms import build
from crestgate.stores.idempotency import OVERHEAD, MemoryRecords, group_by_record
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import IDEMPOTENCY_TTL_US, IdempotencyRecord, Member, Op, Request
from crestgate.testing import FakeClock

FIVE = build(Limit.parse("5/hour"), "limit")
BODY = bytes(16)
NOW = 1_700_000_000_000_000


def take(key: str, record: IdempotencyRecord | None = None) -> Request:
    return Request(Op.TAKE, [Member(key, FIVE, 1)], record)


def test_batch_is_split_into_adjacent_groups() -> None:
    one, two = IdempotencyRecord("n", BODY, b""), IdempotencyRecord("n", BODY, b"")
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
    assert group_by_record(batch) == [
        batch[:2],
        batch[2:4],
        batch[4:5],
        batch[5:6],
        *([request] for request in batch[6:]),
    ]
    assert group_by_record([]) == []


def test_oldest_record_is_dropped_when_full() -> None:
    records = MemoryRecords(max_bytes=3 * (OVERHEAD + 101))
    for name in "abcd":
        records.put(name, bytes(100), NOW)
    assert [records.find(name, NOW) is not None for name in "abcd"] == [False, True, True, True]
    records.put("b", bytes(99), NOW)
    records.put("e", bytes(100), NOW)
    assert [records.find(name, NOW) is not None for name in "abcde"] == [False, True, False, True, True]
    assert records.bytes <= records.max_bytes
    records.put("long", bytes(10_000), NOW)
    assert list(records.records) == ["long"], "the newest record is always stored"
    records.delete("long")
    assert records.bytes == 0


def test_expired_records_are_removed_by_the_next_put() -> None:
    records = MemoryRecords()
    for number in range(1000):
        records.put(f"old {number}", bytes(50), NOW)
    records.put("new", b"", NOW + IDEMPOTENCY_TTL_US)
    assert list(records.records) == ["new"]


def test_clock_step_back_drops_no_record() -> None:
    records = MemoryRecords()
    records.put("n", b"kept", NOW)
    assert records.find("n", NOW - 60_000_000) == b"kept"
    assert records.find("n", NOW - IDEMPOTENCY_TTL_US) is None, "a record in the far future would never expire"


def test_flood_of_names_evicts_no_counter() -> None:
    store = MemoryStore(max_keys=10, clock=FakeClock(1_700_000_000))
    store.records.max_bytes = 100_000
    for key in "abcdefghij":
        store.apply([take(key)])
    for number in range(2000):
        store.apply([take("a", IdempotencyRecord(f"n{number}", BODY, b"note"))])
    assert store.table.size == 10
    assert store.records.bytes <= 100_000
    last = IdempotencyRecord("n1999", BODY, b"")
    store.apply([take("a", last)])
    assert last.replay is not None


def test_possibly_dropped_record_is_not_decided_again() -> None:
    clock = FakeClock(1_700_000_000)
    store = MemoryStore(clock=clock)
    store.records.max_bytes = 100_000
    store.apply([take("a", IdempotencyRecord("settled", BODY, b"", NOW))])
    clock.advance(1)
    later = NOW + 1_000_000
    for number in range(200):
        store.apply([take("b", IdempotencyRecord(f"n{number}", BODY, b""))])
    assert store.records.find("settled", later) is not None, "there was room for all"
    for number in range(200, 2000):
        store.apply([take("b", IdempotencyRecord(f"n{number}", BODY, b""))])
    for name, since_us in (("settled", NOW), ("never seen", NOW)):
        again = IdempotencyRecord(name, BODY, b"", since_us)
        assert store.apply([take("a", again)]) == [[]]
        assert (again.replay, again.pending, again.dropped) == (None, True, True)
    clock.advance(1)
    fresh = IdempotencyRecord("later", BODY, b"", later + 1_000_000)
    assert store.apply([take("a", fresh)])[0][0].decision.allowed
    assert not fresh.dropped, "no record of its time was dropped"
    anew = IdempotencyRecord("settled", BODY, b"")
    assert store.apply([take("a", anew)])[0][0].decision.allowed


def test_expired_record_does_not_count_as_dropped() -> None:
    records = MemoryRecords()
    records.put("old", b"", NOW)
    records.put("new", b"", NOW + IDEMPOTENCY_TTL_US)
    assert list(records.records) == ["new"]
    assert records.dropped_until("old", NOW + IDEMPOTENCY_TTL_US) is None


def test_close_clears_the_records() -> None:
    store = MemoryStore()
    store.apply([take("a", IdempotencyRecord("n", BODY, b""))])
    store.close()
    assert store.records.records == {}
