"""The record file beside a counter file: its creation, its rings, and refused files."""

from __future__ import annotations

import errno
import os
import stat
import struct
import zlib
from pathlib import Path

import pytest

from crestgate import Limit, Limiter, StoreError
from crestgate.core.algorithms import build
from crestgate.stores.port import IdempotencyRecord, Member, Op, Request
from crestgate.stores.shared import SharedStore, idempotency_file
from crestgate.stores.shared.idempotency import MAX_BUCKET_RECORDS, SharedRecords
from crestgate.stores.shared.idempotency_file import RECORD_STRIPES, RingGeometry
from crestgate.stores.shared.layout import HEADER_BYTES
from crestgate.testing import FakeClock

LOTS = build(Limit.parse("1000000/day"), "limit")
LOG = build(Limit(1000, 3600, algorithm="sliding_window_log"), "log")
BODY = bytes(16)
NOW = 1_700_000_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counters"


def opened(path: Path, max_keys: int | None = None, prefix: str = "cg") -> SharedStore:
    return SharedStore(str(path), max_keys, 2000, prefix, FakeClock(1_700_000_000))


def records_of(store: SharedStore) -> SharedRecords:
    return store.records or store.open_records(1.0)


def take(name: str | None, key: str = "key", note: bytes = b"") -> Request:
    return Request(Op.TAKE, [Member(key, LOTS, 1)], None if name is None else IdempotencyRecord(name, BODY, note))


def is_stored(store: SharedStore, name: str) -> bool:
    request = take(name, "somewhere else")
    store.apply([request])
    assert request.record is not None
    return request.record.replay is not None


def used(store: SharedStore, key: str = "key") -> int:
    return 1_000_000 - store.apply([Request(Op.PEEK, [Member(key, LOTS, 0)])])[0][0].decision.remaining


# -- the file ---------------------------------------------------------------------------------------------------------


def test_record_file_is_created_on_first_use(path: Path) -> None:
    store = opened(path)
    store.apply([take(None)])
    Limiter(store).check("key", "5/minute")
    assert os.listdir(path.parent) == ["counters"]
    store.apply([take("n")])
    assert sorted(os.listdir(path.parent)) == ["counters", "counters.once"]
    size = os.stat(f"{path}.once").st_size
    assert size == RingGeometry.for_keys(50_000).file_bytes
    assert os.stat(f"{path}.once").st_blocks * 512 >= size, "with all its blocks"


def test_record_file_has_the_mode_of_the_counter_file(path: Path) -> None:
    with Limiter(f"shared://{path}"):
        pass
    os.chmod(path, 0o660)
    store = opened(path)
    store.apply([take("n")])
    assert stat.S_IMODE(os.stat(f"{path}.once").st_mode) == 0o660


def test_records_survive_their_writer(path: Path) -> None:
    store = opened(path)
    store.apply([take("n")])
    store.close()
    store = opened(path)
    assert is_stored(store, "n")
    store.close()


def test_prefixes_isolate_names(path: Path) -> None:
    one, two = opened(path), opened(path, prefix="another")
    one.apply([take("n")])
    assert is_stored(one, "n")
    assert not is_stored(two, "n")


def test_records_of_an_earlier_counter_file_are_discarded(path: Path) -> None:
    store = opened(path, 100)
    store.apply([take("n")])
    store.close()
    path.unlink()
    store = opened(path, 50_000)
    assert not is_stored(store, "n")
    assert os.stat(f"{path}.once").st_size == RingGeometry.for_keys(50_000).file_bytes
    store.close()
    again = opened(path)
    assert is_stored(again, "n")
    again.close()


def test_foreign_file_is_rejected_and_unchanged(path: Path) -> None:
    mine = Path(f"{path}.once")
    mine.write_bytes(b"my own notes")
    store = opened(path)
    with pytest.raises(StoreError, match="not a Crestgate file of idempotency records"):
        store.apply([take("n")])
    assert mine.read_bytes() == b"my own notes"
    assert used(store) == 0, "and nothing was charged"
    assert store.apply([take(None)])[0][0].decision.allowed, "requests without a record still work"


def test_folder_is_rejected(path: Path) -> None:
    os.mkdir(f"{path}.once")
    store = opened(path)
    with pytest.raises(StoreError, match="cannot open the idempotency records"):
        store.apply([take("n")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:3000], "truncated"),
        (lambda content: content[:-8], "corrupt"),
        (lambda content: content[:16] + b"\1" + content[17:], "corrupt"),
        (lambda content: content[:8] + struct.pack("=I", 9) + content[12:], "layout 9, this one reads 2"),
    ],
)
def test_invalid_file_is_rejected(path: Path, change: object, message: str) -> None:
    store = opened(path, 100)
    store.apply([take("n")])
    store.close()
    file = Path(f"{path}.once")
    file.write_bytes(change(file.read_bytes()))  # type: ignore[operator]
    store = opened(path)
    with pytest.raises(StoreError, match=message):
        store.apply([take("n")])
    store.close()


def test_full_disk_error_names_the_size_needed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = opened(path)
    monkeypatch.setattr(idempotency_file, "create_file", full)
    with pytest.raises(StoreError, match=r"no room for \d+ MB of idempotency records"):
        store.apply([take("n")])


# -- the rings --------------------------------------------------------------------------------------------------------


def test_header_matches_the_documentation(path: Path) -> None:
    store = opened(path, 100)
    store.apply([take("n")])
    header = Path(f"{path}.once").read_bytes()[:HEADER_BYTES]
    magic, version, zero, stripe_bytes, buckets, salt, crc = struct.unpack_from("=8sIIqq16sI", header)
    assert (magic, version, zero) == (b"CRSTGATI", 2, 0)
    assert (stripe_bytes, buckets) == (589_824, 2304)
    assert (salt, crc) == (store.geometry.salt, zlib.crc32(header[:48]))


def test_ring_overwrites_the_oldest_record(path: Path) -> None:
    store = opened(path, 100)
    records = records_of(store)
    replay = {f"n{number}": os.urandom(number * 37 % 3000) for number in range(12_000)}
    for name, content in replay.items():
        records.put(name, content, NOW)
    still = [name for name, content in replay.items() if records.find(name, NOW) == content]
    assert 3000 < len(still) < 11_000
    overwritten = [name for name in replay if records.find(name, NOW) is None]
    assert len(still) + len(overwritten) == len(replay), "exactly the stored records are found"
    for stripe in range(RECORD_STRIPES):
        mine = [int(name[1:]) for name in still if records.stripe_of(records.digest(name)) == stripe]
        lost = [int(name[1:]) for name in overwritten if records.stripe_of(records.digest(name)) == stripe]
        assert max(lost) < min(mine), "in order"


def test_put_replaces_the_record_of_the_same_name(path: Path) -> None:
    records = records_of(opened(path, 100))
    records.put("n", b"first", NOW)
    records.put("n", b"second", NOW)
    assert records.find("n", NOW) == b"second"
    records.delete("n")
    assert records.find("n", NOW) is None
    records.put("n", b"third", NOW)
    assert records.find("n", NOW) == b"third"


def test_names_in_one_bucket_are_all_found(path: Path) -> None:
    records = records_of(opened(path, 100))
    records.buckets = 1
    names = [f"n{number}" for number in range(500)]
    for name in names:
        records.put(name, name.encode(), NOW)
    assert [records.find(name, NOW) for name in names] == [name.encode() for name in names]
    assert records.find("another", NOW) is None


def test_repeated_puts_of_a_name_do_not_hide_others(path: Path) -> None:
    """A lookup scans the records of a bucket in order, up to a fixed number."""
    records = records_of(opened(path, 100))
    records.buckets = 1
    stripe = records.stripe_of(records.digest("n0"))
    same = [name for name in (f"n{i}" for i in range(100)) if records.stripe_of(records.digest(name)) == stripe]
    for name in same:
        records.put(name, name.encode(), NOW)
    for _ in range(5 * MAX_BUCKET_RECORDS):
        records.put(same[0], b"again", NOW)
    assert [records.find(name, NOW) for name in same[1:]] == [name.encode() for name in same[1:]]


def test_dropped_until_is_the_time_of_the_overwritten_segment(path: Path) -> None:
    """Not too early for any dropped record, and at most one segment too late."""
    records = records_of(opened(path, 100))
    stripe = records.stripe_of(records.digest("n0"))
    names = [name for name in (f"n{i}" for i in range(12_000)) if records.stripe_of(records.digest(name)) == stripe]
    replay: list[str] = []
    for number, name in enumerate(names):
        records.put(name, bytes(number * 977 % 9000), NOW + number)
        replay.append(name)
        if number % 10:
            continue
        overwritten = [i for i, earlier in enumerate(replay) if records.find(earlier, NOW) is None]
        dropped_us = records.dropped_until(name, NOW + number)
        if dropped_us is None:
            assert not overwritten
        else:
            assert not overwritten or dropped_us >= NOW + overwritten[-1]
            reach = NOW + number - dropped_us
            assert reach > (number - len(overwritten)) * 0.7, "most stored records are newer than that"
    assert overwritten


def test_possibly_dropped_record_is_not_decided_again(path: Path) -> None:
    store = opened(path, 100)
    store.apply([Request(Op.TAKE, [Member("key", LOTS, 1)], IdempotencyRecord("settled", BODY, b"", NOW))])
    for number in range(1000):
        store.apply([take(f"n{number}", note=bytes(100_000))])
    again = IdempotencyRecord("settled", BODY, b"", NOW)
    assert store.apply([Request(Op.TAKE, [Member("key", LOTS, 1)], again)]) == [[]]
    assert (again.replay, again.pending, again.dropped) == (None, True, True)
    assert used(store) == 1001
    claim = IdempotencyRecord("settled", BODY, b"", NOW)
    store.apply([Request(Op.CLAIM, [], claim)])
    assert claim.dropped
    fresh = IdempotencyRecord("later", BODY, b"", NOW + 1)
    assert store.apply([Request(Op.TAKE, [Member("key", LOTS, 1)], fresh)])[0][0].decision.allowed
    assert not fresh.dropped


def test_emptied_ring_may_have_dropped_any_record(path: Path) -> None:
    store = opened(path, 100)
    records = records_of(store)
    store.apply([take("n")])
    records.words[records.stripe_at(records.digest("n")) >> 3] = -1
    with pytest.raises(StoreError, match="a corrupt ring of idempotency records was emptied"):
        store.apply([take("n")])
    assert records.dropped_until("n", NOW + 5) == NOW + 5
    assert records.dropped_until("n", NOW + 9) == NOW + 5
    records.put("n", b"kept", NOW + 9)
    assert records.find("n", NOW + 9) == b"kept"


def test_flood_of_names_evicts_no_counter_and_no_log(path: Path) -> None:
    store = opened(path, 20)
    for number in range(19):
        store.apply([take(None, f"key {number}")])
    store.apply([Request(Op.TAKE, [Member("log", LOG, 1)])])
    for number in range(3000):
        store.apply([take(f"n{number}", "key 0", note=bytes(5000))])
    assert [used(store, f"key {number}") for number in range(19)] == [3001] + [1] * 18
    assert store.apply([Request(Op.PEEK, [Member("log", LOG, 0)])])[0][0].decision.remaining == 999
    assert is_stored(store, "n2999")
    assert not is_stored(store, "n0")
    assert os.stat(f"{path}.once").st_size == RingGeometry.for_keys(20).file_bytes


def test_too_long_record_is_rejected_and_nothing_changes(path: Path) -> None:
    store = opened(path, 100)
    short, claim = take("short"), Request(Op.CLAIM, [], IdempotencyRecord("claim", BODY, b""))
    with pytest.raises(ValueError, match=r"would have 300,0\d\d bytes, more than 262,144: send fewer requests"):
        store.apply([claim, short, take("long", note=bytes(300_000)), take(None)])
    assert used(store) == 0
    assert not is_stored(store, "short")
    second = IdempotencyRecord("claim", BODY, b"")
    store.apply([Request(Op.CLAIM, [], second)])
    assert not second.pending
    store.apply([take("long", note=bytes(250_000))])
    assert is_stored(store, "long")


def test_too_short_ring_rejects_and_nothing_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a file is never created, but a write must stay inside its ring."""
    monkeypatch.setattr(idempotency_file, "MIN_STRIPE_BYTES", 64 * 1024)
    store = opened(path, 100)
    with pytest.raises(ValueError, match=r"an idempotency record has 200,0\d\d bytes, and there is room for 31,740"):
        store.apply([take("short"), take("long", note=bytes(200_000)), take(None)])
    assert used(store) == 0
    assert not is_stored(store, "short")


def test_record_waits_for_its_lock(path: Path) -> None:
    store, other = opened(path), opened(path)
    store.timeout = 0.01
    records = records_of(store)
    number = store.first_record + records.stripe_of(records.digest("n"))
    other.locks.acquire(number, 1.0)
    assert store.apply_within([take("n")], 0.0) is None
    with pytest.raises(StoreError, match="a lock was not free"):
        store.apply([take("n")])
    assert store.apply([take(None)])[0][0].decision.allowed
    other.locks.release(number)
    replies = store.apply_within([take("n")], 0.0)
    assert replies is not None
    assert replies[0][0].decision.allowed
