"""The file of records beside a counter file: when it is made, how it goes round, and which files are refused."""

from __future__ import annotations

import errno
import os
import stat
import struct
import zlib
from pathlib import Path

import pytest

from headgate import Limit, Limiter, StoreError
from headgate.core.algorithms import build
from headgate.stores.port import Member, Once, Op, Request
from headgate.stores.shared import SharedStore, record_file
from headgate.stores.shared.layout import HEADER_BYTES
from headgate.stores.shared.record_file import RECORD_STRIPES, Rings
from headgate.stores.shared.records import MAX_STEPS, SharedRecords
from headgate.testing import FakeClock

LOTS = build(Limit.parse("1000000/day"), "limit")
LOG = build(Limit(1000, 3600, algorithm="sliding_window_log"), "log")
BODY = bytes(16)
NOW = 1_700_000_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counters"


def opened(path: Path, max_keys: int | None = None, prefix: str = "hg") -> SharedStore:
    return SharedStore(str(path), max_keys, 2000, prefix, FakeClock(1_700_000_000))


def records_of(store: SharedStore) -> SharedRecords:
    return store.records or store.open_records(1.0)


def take(name: str | None, key: str = "key", note: bytes = b"") -> Request:
    return Request(Op.TAKE, [Member(key, LOTS, 1)], None if name is None else Once(name, BODY, note))


def is_kept(store: SharedStore, name: str) -> bool:
    request = take(name, "somewhere else")
    store.apply([request])
    assert request.once is not None
    return request.once.kept is not None


def used(store: SharedStore, key: str = "key") -> int:
    return 1_000_000 - store.apply([Request(Op.PEEK, [Member(key, LOTS, 0)])])[0][0].decision.remaining


# -- the file ---------------------------------------------------------------------------------------------------------


def test_it_is_made_when_it_is_first_needed(path: Path) -> None:
    store = opened(path)
    store.apply([take(None)])
    Limiter(store).check("key", "5/minute")
    assert os.listdir(path.parent) == ["counters"]
    store.apply([take("n")])
    assert sorted(os.listdir(path.parent)) == ["counters", "counters.once"]
    size = os.stat(f"{path}.once").st_size
    assert size == Rings.for_keys(50_000).file_bytes
    assert os.stat(f"{path}.once").st_blocks * 512 >= size, "with all its blocks"


def test_it_may_be_opened_by_whoever_may_open_the_counters(path: Path) -> None:
    with Limiter(f"shared://{path}"):
        pass
    os.chmod(path, 0o660)
    store = opened(path)
    store.apply([take("n")])
    assert stat.S_IMODE(os.stat(f"{path}.once").st_mode) == 0o660


def test_records_outlive_those_who_wrote_them(path: Path) -> None:
    store = opened(path)
    store.apply([take("n")])
    store.close()
    store = opened(path)
    assert is_kept(store, "n")
    store.close()


def test_prefixes_keep_names_apart(path: Path) -> None:
    one, two = opened(path), opened(path, prefix="another")
    one.apply([take("n")])
    assert is_kept(one, "n")
    assert not is_kept(two, "n")


def test_records_of_an_earlier_counter_file_are_not_taken_over(path: Path) -> None:
    store = opened(path, 100)
    store.apply([take("n")])
    store.close()
    path.unlink()
    store = opened(path, 50_000)
    assert not is_kept(store, "n")
    assert os.stat(f"{path}.once").st_size == Rings.for_keys(50_000).file_bytes
    store.close()
    again = opened(path)
    assert is_kept(again, "n")
    again.close()


def test_a_file_that_is_something_else_is_refused_and_left_alone(path: Path) -> None:
    mine = Path(f"{path}.once")
    mine.write_bytes(b"my own notes")
    store = opened(path)
    with pytest.raises(StoreError, match="not a file of Headgate's idempotency records"):
        store.apply([take("n")])
    assert mine.read_bytes() == b"my own notes"
    assert used(store) == 0, "and nothing was charged"
    assert store.apply([take(None)])[0][0].decision.allowed, "what is not decided once goes on"


def test_a_folder_in_its_place_is_refused(path: Path) -> None:
    os.mkdir(f"{path}.once")
    store = opened(path)
    with pytest.raises(StoreError, match="cannot open the file of records"):
        store.apply([take("n")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:3000], "cut short"),
        (lambda content: content[:-8], "damaged"),
        (lambda content: content[:16] + b"\1" + content[17:], "damaged"),
        (lambda content: content[:8] + struct.pack("=I", 9) + content[12:], "layout 9, this one reads 2"),
    ],
)
def test_a_file_that_cannot_be_used_says_so(path: Path, change: object, message: str) -> None:
    store = opened(path, 100)
    store.apply([take("n")])
    store.close()
    file = Path(f"{path}.once")
    file.write_bytes(change(file.read_bytes()))  # type: ignore[operator]
    store = opened(path)
    with pytest.raises(StoreError, match=message):
        store.apply([take("n")])
    store.close()


def test_no_room_says_how_much_is_needed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = opened(path)
    monkeypatch.setattr(record_file, "make_file", full)
    with pytest.raises(StoreError, match=r"no room for \d+ MB of idempotency records"):
        store.apply([take("n")])


# -- the rings --------------------------------------------------------------------------------------------------------


def test_the_header_says_what_the_documentation_says(path: Path) -> None:
    store = opened(path, 100)
    store.apply([take("n")])
    header = Path(f"{path}.once").read_bytes()[:HEADER_BYTES]
    magic, version, zero, stripe_bytes, buckets, salt, crc = struct.unpack_from("=8sIIqq16sI", header)
    assert (magic, version, zero) == (b"HEADGATO", 2, 0)
    assert (stripe_bytes, buckets) == (589_824, 2304)
    assert (salt, crc) == (store.geometry.salt, zlib.crc32(header[:48]))


def test_the_ring_goes_round_and_the_oldest_goes_first(path: Path) -> None:
    store = opened(path, 100)
    records = records_of(store)
    kept = {f"n{number}": os.urandom(number * 37 % 3000) for number in range(12_000)}
    for name, content in kept.items():
        records.keep(name, content, NOW)
    still = [name for name, content in kept.items() if records.find(name, NOW) == content]
    assert 3000 < len(still) < 11_000
    gone = [name for name in kept if records.find(name, NOW) is None]
    assert len(still) + len(gone) == len(kept), "what is found is what was kept, and nothing else"
    for stripe in range(RECORD_STRIPES):
        mine = [int(name[1:]) for name in still if records.stripe_of(records.digest(name)) == stripe]
        lost = [int(name[1:]) for name in gone if records.stripe_of(records.digest(name)) == stripe]
        assert max(lost) < min(mine), "in order"


def test_what_is_kept_again_takes_the_place_of_what_was(path: Path) -> None:
    records = records_of(opened(path, 100))
    records.keep("n", b"first", NOW)
    records.keep("n", b"second", NOW)
    assert records.find("n", NOW) == b"second"
    records.forget("n")
    assert records.find("n", NOW) is None
    records.keep("n", b"third", NOW)
    assert records.find("n", NOW) == b"third"


def test_names_that_share_a_bucket_are_all_found(path: Path) -> None:
    records = records_of(opened(path, 100))
    records.buckets = 1
    names = [f"n{number}" for number in range(500)]
    for name in names:
        records.keep(name, name.encode(), NOW)
    assert [records.find(name, NOW) for name in names] == [name.encode() for name in names]
    assert records.find("another", NOW) is None


def test_name_that_is_kept_again_and_again_does_not_hide_others(path: Path) -> None:
    """A bucket's records are looked at one after the other, and no more than so many of them."""
    records = records_of(opened(path, 100))
    records.buckets = 1
    stripe = records.stripe_of(records.digest("n0"))
    same = [name for name in (f"n{i}" for i in range(100)) if records.stripe_of(records.digest(name)) == stripe]
    for name in same:
        records.keep(name, name.encode(), NOW)
    for _ in range(5 * MAX_STEPS):
        records.keep(same[0], b"again", NOW)
    assert [records.find(name, NOW) for name in same[1:]] == [name.encode() for name in same[1:]]


def test_ring_says_until_when_records_may_have_been_dropped(path: Path) -> None:
    """Not too early for any record that is gone, and no more than a segment too late."""
    records = records_of(opened(path, 100))
    stripe = records.stripe_of(records.digest("n0"))
    names = [name for name in (f"n{i}" for i in range(12_000)) if records.stripe_of(records.digest(name)) == stripe]
    kept: list[str] = []
    for number, name in enumerate(names):
        records.keep(name, bytes(number * 977 % 9000), NOW + number)
        kept.append(name)
        if number % 10:
            continue
        gone = [i for i, earlier in enumerate(kept) if records.find(earlier, NOW) is None]
        dropped_us = records.dropped_until(name, NOW + number)
        if dropped_us is None:
            assert not gone
        else:
            assert not gone or dropped_us >= NOW + gone[-1]
            reach = NOW + number - dropped_us
            assert reach > (number - len(gone)) * 0.7, "most of what is there can be told"
    assert gone


def test_record_that_may_have_been_dropped_is_not_decided_anew(path: Path) -> None:
    store = opened(path, 100)
    store.apply([Request(Op.TAKE, [Member("key", LOTS, 1)], Once("settled", BODY, b"", NOW))])
    for number in range(1000):
        store.apply([take(f"n{number}", note=bytes(100_000))])
    again = Once("settled", BODY, b"", NOW)
    assert store.apply([Request(Op.TAKE, [Member("key", LOTS, 1)], again)]) == [[]]
    assert (again.kept, again.pending, again.dropped) == (None, True, True)
    assert used(store) == 1001
    claim = Once("settled", BODY, b"", NOW)
    store.apply([Request(Op.CLAIM, [], claim)])
    assert claim.dropped
    fresh = Once("later", BODY, b"", NOW + 1)
    assert store.apply([Request(Op.TAKE, [Member("key", LOTS, 1)], fresh)])[0][0].decision.allowed
    assert not fresh.dropped


def test_ring_that_was_emptied_may_have_dropped_anything(path: Path) -> None:
    store = opened(path, 100)
    records = records_of(store)
    store.apply([take("n")])
    records.words[records.stripe_at(records.digest("n")) >> 3] = -1
    with pytest.raises(StoreError, match="a damaged ring of idempotency records was emptied"):
        store.apply([take("n")])
    assert records.dropped_until("n", NOW + 5) == NOW + 5
    assert records.dropped_until("n", NOW + 9) == NOW + 5
    records.keep("n", b"kept", NOW + 9)
    assert records.find("n", NOW + 9) == b"kept"


def test_a_flood_of_names_costs_no_counter_and_no_log(path: Path) -> None:
    store = opened(path, 20)
    for number in range(19):
        store.apply([take(None, f"key {number}")])
    store.apply([Request(Op.TAKE, [Member("log", LOG, 1)])])
    for number in range(3000):
        store.apply([take(f"n{number}", "key 0", note=bytes(5000))])
    assert [used(store, f"key {number}") for number in range(19)] == [3001] + [1] * 18
    assert store.apply([Request(Op.PEEK, [Member("log", LOG, 0)])])[0][0].decision.remaining == 999
    assert is_kept(store, "n2999")
    assert not is_kept(store, "n0")
    assert os.stat(f"{path}.once").st_size == Rings.for_keys(20).file_bytes


def test_a_record_that_is_too_long_is_refused_and_all_is_as_it_was(path: Path) -> None:
    store = opened(path, 100)
    short, claim = take("short"), Request(Op.CLAIM, [], Once("claim", BODY, b""))
    with pytest.raises(ValueError, match=r"has 300,0\d\d bytes, and may have 262,144: ask for less at a time"):
        store.apply([claim, short, take("long", note=bytes(300_000)), take(None)])
    assert used(store) == 0
    assert not is_kept(store, "short")
    second = Once("claim", BODY, b"")
    store.apply([Request(Op.CLAIM, [], second)])
    assert not second.pending
    store.apply([take("long", note=bytes(250_000))])
    assert is_kept(store, "long")


def test_a_ring_that_is_too_short_refuses_and_all_is_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody makes such a file, but what is written must never leave its ring."""
    monkeypatch.setattr(record_file, "LEAST_STRIPE_BYTES", 64 * 1024)
    store = opened(path, 100)
    with pytest.raises(ValueError, match=r"what is to be kept has 200,0\d\d bytes, and there is room for 31,740"):
        store.apply([take("short"), take("long", note=bytes(200_000)), take(None)])
    assert used(store) == 0
    assert not is_kept(store, "short")


def test_a_record_waits_for_its_lock_like_a_counter(path: Path) -> None:
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
