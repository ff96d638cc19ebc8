"""Damaged shared files: with any content, a check decides within its limit or fails with a StoreError.

Files are mutated at random, from a seed, in the parts that are in use: words that no writer can have written, words
from other offsets, flipped bits, runs of zeros. A file that is truncated while it is in use is refused, too.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import httpx
import pytest

from crestgate import Limit, Limiter, StoreError
from crestgate.core.algorithms import Algorithm, build
from crestgate.stores.port import IdempotencyRecord, Member, Op, Outcome, PartialStoreError, Request
from crestgate.stores.shared import SharedStore
from crestgate.stores.shared.layout import HEADER_BYTES
from crestgate.testing import FakeClock
from integration.inspection import used_blocks
from integration.service.service_process import Service

FILES = 300
SECONDS_PER_FILE = 30
LIMITS = [
    "5/minute",
    "5/minute burst 9",
    "3/hour using leaky_bucket",
    "7/day using gcra",
    "5/day using fixed_window",
    "6/hour using sliding_window_counter",
    "1/second using fixed_window",
    "9/day using sliding_window_log",
    "100/hour using sliding_window_log",
    "2000000/year using sliding_window_log",
    "1000000/year",
]
ALGORITHMS = [build(Limit.parse(text), text) for text in LIMITS]
CHANGED = [build(Limit.parse(text), "plan") for text in ("50/hour", "60/day using sliding_window_log", "9/minute")]
KEYS = ["a", "b"]
WORDS = [0, 1, -1, 2, 7, 31, 32, 1 << 31, 1 << 32, 1 << 40, 1 << 53, (1 << 53) - 1, -(1 << 53), 1 << 61, 1 << 62]
WORDS += [(1 << 63) - 1, -(1 << 63), 1_700_000_000_000_000, 1_900_000_000_000_000]


def apply(store: SharedStore, op: Op, members: list[Member], record: IdempotencyRecord | None = None) -> list[Outcome]:
    (reply,) = store.apply([Request(op, members, record)])
    return reply


def new_record(name: str) -> IdempotencyRecord:
    return IdempotencyRecord(name, bytes(16), b"note")


def prepare(path: Path) -> FakeClock:
    """A file with counters of every kind: fresh, exhausted, in debt; logs in rings and in chains; and records."""
    clock = FakeClock(1_700_000_000)
    store = SharedStore(str(path), max_keys=30, clock=clock)
    for algorithm in ALGORITHMS:
        for key in KEYS:
            for _ in range(120 if algorithm.capacity > 99 else 10):
                clock.advance(0.001)
                apply(store, Op.TAKE, [Member(key, algorithm, 1)])
        apply(store, Op.CHARGE, [Member("b", algorithm, 40)])
    for algorithm in CHANGED[:2]:
        apply(store, Op.TAKE, [Member("a", algorithm, 3)])
    for name in ("first", "second", "third"):
        apply(store, Op.TAKE, [Member("once", ALGORITHMS[0], 1)], new_record(name))
    store.close()
    return clock


def parts_in_use(store: SharedStore) -> list[tuple[int, int]]:
    """The ranges of the file that are in use, where damage has an effect."""
    geometry, table = store.geometry, store.table
    parts = [
        (0, 300),
        (HEADER_BYTES, table.meta_at(0, 0)),
        (table.meta_at(0, 0), table.state_at(0, 0)),
    ]
    slots = [slot for slot in range(table.slots) if table.is_assigned(0, slot)]
    parts += [(table.state_at(0, slot), table.state_at(0, slot + 1)) for slot in slots] * 3
    parts += [(table.ring_at(0, slot), table.ring_at(0, slot + 1)) for slot in slots]
    blocks = sorted(used_blocks(store))
    parts += [(geometry.owners_at + block * 8, geometry.owners_at + block * 8 + 8) for block in blocks]
    parts += [(geometry.blocks_at + block * 512, geometry.blocks_at + block * 512 + 512) for block in blocks]
    return parts


def record_parts(store: SharedStore) -> list[tuple[int, int]]:
    """The same for the record file: heads, and the bucket and record of each name."""
    records = store.open_records(1.0)
    parts = [(0, 100)]
    for name in ("first", "second", "third"):
        digest = records.digest(name)
        head, bucket, at = records.stripe_at(digest), records.bucket_of(digest), records.record_at(digest)
        parts += [(head, head + 8), (head + bucket * 8, head + bucket * 8 + 8), (at, at + 128)]
    return parts


def mutate(content: bytearray, parts: list[tuple[int, int]], chance: random.Random) -> None:
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        start, end = chance.choice(parts)
        at = chance.randrange(start, end)
        word = at // 8 * 8
        kind = chance.randrange(6)
        if kind == 0:
            content[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            struct.pack_into("@q", content, word, chance.choice(WORDS))
        elif kind == 2:
            struct.pack_into("@q", content, word, struct.unpack_from("@q", content, word)[0] ^ chance.getrandbits(62))
        elif kind == 3:
            other = chance.randrange(*chance.choice(parts)) // 8 * 8
            content[word : word + 8] = content[other : other + 8]
        elif kind == 4:
            size = min(chance.choice([8, 64, 200]), end - word)
            content[word : word + size] = bytes(size)
        else:
            size = min(chance.choice([8, 64, 200]), end - word)
            content[word : word + size] = chance.randbytes(size)


def checked(store: SharedStore, op: Op, algorithm: Algorithm, key: str, cost: int, outcomes: Counter[str]) -> None:
    """One request on a file that may be damaged."""
    tick = store.clock.ticks() // algorithm.tick
    try:
        (outcome,) = apply(store, op, [Member(key, algorithm, cost, True, tick, cost)])
        decision = outcome.decision
    except StoreError:
        outcomes["refused"] += 1
        return
    outcomes["decided"] += 1
    assert 0 <= decision.remaining <= algorithm.capacity, (algorithm.name, decision)
    assert decision.reset_after >= 0, (algorithm.name, decision)
    assert decision.retry_after is None or decision.retry_after >= 0, (algorithm.name, decision)


def use(store: SharedStore, clock: FakeClock, chance: random.Random, outcomes: Counter[str]) -> None:
    """Every operation of a store, on all counters."""
    targets = [(algorithm, key) for algorithm in ALGORITHMS for key in KEYS] + [(one, "a") for one in CHANGED]
    chance.shuffle(targets)
    for algorithm, key in targets:
        for op in (Op.PEEK, Op.TAKE, Op.GIVE_BACK, Op.CHARGE, Op.TAKE):
            checked(store, op, algorithm, key, chance.choice([0, 1, 1, 2, 5]), outcomes)
        try:
            assert 0 <= store.take(algorithm, key, 1).remaining <= algorithm.capacity
            many = store.take_many([(algorithm, key, 1), (algorithm, "b", 1)])
            assert all(0 <= decision.remaining <= algorithm.capacity for decision in many or ())
        except StoreError:
            outcomes["refused"] += 1
        clock.advance(chance.choice([0, 0.01, 1]))
    batch = [Request(Op.TAKE, [Member(key, algorithm, 1)]) for algorithm, key in targets]
    try:
        answered = len(store.apply(batch))
    except PartialStoreError as error:
        answered = len(error.outcomes)
    assert answered == len(batch)
    for name in ("first", "second", "third", "fourth"):
        record = new_record(name)
        try:
            apply(store, Op.TAKE, [Member("once", ALGORITHMS[0], 1)], record)
        except StoreError:
            outcomes["record refused"] += 1
        else:
            for allowed, remaining, *_ in record.replay.numbers if record.replay is not None else ():
                assert 0 <= remaining <= ALGORITHMS[0].capacity, allowed


def too_long(_: int, frame: FrameType | None) -> None:
    raise AssertionError("a check does not end")


def attack(folder: Path, files: int, seed: int) -> Counter[str]:
    """Damage and use `files` files; returns the counts of outcomes."""
    folder.mkdir(exist_ok=True)
    base, path = folder / "base", folder / "counters"
    clock = prepare(base)
    store = SharedStore(str(base), clock=clock)
    parts, of_records = parts_in_use(store), record_parts(store)
    store.close()
    contents = [(path, base.read_bytes(), parts), (Path(f"{path}.once"), Path(f"{base}.once").read_bytes(), of_records)]
    outcomes: Counter[str] = Counter()
    before = signal.signal(signal.SIGALRM, too_long)
    try:
        for number in range(files):
            chance = random.Random(f"{seed}/{number}")
            signal.alarm(SECONDS_PER_FILE)
            for file, content, ranges in contents:
                changed = bytearray(content)
                if file is path or chance.random() < 0.5:
                    mutate(changed, ranges, chance)
                file.write_bytes(changed)
            now = FakeClock(clock.now() + chance.choice([0, 1, 3600, -7200]))
            try:
                store = SharedStore(str(path), clock=now)
            except StoreError:
                outcomes["not opened"] += 1
                continue
            try:
                use(store, now, chance, outcomes)
                outcomes["resets"] += store.corruption.resets
                outcomes["files with a reset"] += store.corruption.resets > 0
            except BaseException as error:
                error.add_note(f"file {number} of seed {seed}")
                raise
            finally:
                store.close()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return outcomes


def test_damaged_files_never_break_a_check(tmp_path: Path, report: Callable[..., None]) -> None:
    logging.getLogger("crestgate").setLevel(logging.CRITICAL)
    try:
        outcomes = attack(tmp_path / "files", FILES, seed=8)
    finally:
        logging.getLogger("crestgate").setLevel(logging.NOTSET)
    assert outcomes["files with a reset"] > FILES // 5
    assert outcomes["decided"] > 100 * FILES
    assert outcomes["record refused"] > 0
    report(f"{FILES} damaged shared files: {dict(outcomes)}")


@pytest.mark.parametrize("word", [1, 2], ids=["a", "b"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=LIMITS)
def test_damaged_counter_is_answered_by_policy_then_reset(
    word: int, algorithm: Algorithm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In every kind of call, including callers that retry when a store fails."""
    clock = FakeClock(1_700_000_000)
    limit = algorithm.name
    with Limiter(f"shared://{tmp_path}/counters?max_keys=20", clock=clock) as other:  # another process, which wrote it
        other.check("k", limit)
        other.check("k", limit)
    with Limiter(f"shared://{tmp_path}/counters?max_keys=20", clock=clock, on_store_error="closed") as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        location = store.digests.locate(limit, "k")
        digest, stripe = location.digest, location.stripe
        cell = store.table.state_at(stripe, store.table.find(stripe, digest)) >> 3
        for copy in (1, 13):
            store.words[cell + copy + word] = -1 if not algorithm.keeps_log or word == 1 else 1 << 60
        bound = limiter.bind(limit)
        assert bound.try_check("k", 1) is None
        assert limiter.check("k", limit).reason == "fail_closed"
        assert store.corruption.resets == 1
        assert sum("a corrupt counter was reset" in message for message in caplog.messages) >= 1
        clock.advance(1)
        assert limiter.check("k", limit).reason == "ok"


def test_damaged_counter_is_mended_by_the_process_that_knows_its_state(tmp_path: Path) -> None:
    clock = FakeClock(1_700_000_000)
    url = f"shared://{tmp_path}/counters?max_keys=20"
    with Limiter(url, clock=clock) as limiter, Limiter(url, clock=clock) as other:
        store = limiter.store
        assert isinstance(store, SharedStore)
        assert [limiter.check("k", "10/hour").remaining for _ in range(3)] == [9, 8, 7]
        location = store.digests.locate("10/hour", "k")
        slot = store.table.find(location.stripe, location.digest)
        cell = store.table.state_at(location.stripe, slot) >> 3
        for copy in (1, 13):
            store.words[cell + copy + 1] = -1
        assert limiter.check("k", "10/hour").remaining == 6
        assert other.check("k", "10/hour").remaining == 5


def test_damaged_counter_does_not_fail_its_batch(tmp_path: Path) -> None:
    clock = FakeClock(1_700_000_000)
    with Limiter(f"shared://{tmp_path}/counters?max_keys=20", clock=clock, on_store_error="closed") as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        for key in ("one", "two", "three"):
            limiter.check(key, "1/day")
        location = store.digests.locate("1/day", "two")
        digest, stripe = location.digest, location.stripe
        store.words[store.table.state_at(stripe, store.table.find(stripe, digest)) >> 3] = -1
        decisions = limiter.check_many([(key, "1/day") for key in ("one", "two", "three")])
        assert [decision.reason for decision in decisions] == ["limited", "fail_closed", "limited"]


def test_truncated_file_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    clock = FakeClock(1_700_000_000)
    with Limiter(f"shared://{path}?max_keys=20", clock=clock, on_store_error="closed") as limiter:
        store = limiter.store
        assert isinstance(store, SharedStore)
        assert limiter.check("k", "5/day").allowed
        apply(store, Op.TAKE, [Member("k", ALGORITHMS[0], 1)], new_record("name"))
        whole = path.read_bytes()
        for file in (path, Path(f"{path}.once")):
            size = file.stat().st_size
            os.truncate(file, 4096)
            clock.advance(1)
            for _ in range(3):
                assert limiter.check("k", "5/day").reason == "fail_closed"
                assert {d.reason for d in limiter.check_many([("k", "5/day"), ("l", "5/day")])} == {"fail_closed"}
                with pytest.raises(StoreError, match="truncated while in use"):
                    apply(store, Op.TAKE, [Member("k", ALGORITHMS[0], 1)], new_record("name"))
            os.truncate(file, size)
            if file is path:
                with open(path, "r+b") as target:
                    target.write(whole)
        assert limiter.check("k", "5/day").remaining == 3
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_impossible_anchor_is_reset(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    for anchor in (1 << 62, -(1 << 62), -(1 << 63)):
        with Limiter(f"shared://{path}?max_keys=20") as limiter:
            limiter.check("k", "5/day using fixed_window")
        with open(path, "r+b") as file:
            file.seek(256)
            file.write(struct.pack("@q", anchor))
        with Limiter(f"shared://{path}", on_store_error="closed") as limiter:
            assert limiter.check("k", "5/day using fixed_window").reason == "ok"
        path.unlink()


def test_damage_is_a_metric_of_the_service(serve: Callable[..., Service]) -> None:
    service = serve()
    check = {"counters": [{"key": "k", "limit": "5/day"}]}
    with httpx.Client(base_url=service.url) as client:
        body = {"checks": [check]}
        assert client.post("/api/v1/check/batch", json=body).json()["decisions"][0]["reason"] == "ok"
        assert "crestgate_store_resets_total 0.0" in client.get("/metrics").text
        damage_all_counters(next(Path(service.folder).rglob("counters")))
        assert client.post("/api/v1/check/batch", json=body).json()["decisions"][0]["reason"] == "fail_open"
        assert "crestgate_store_resets_total 1.0" in client.get("/metrics").text


def damage_all_counters(path: Path) -> None:
    """Write impossible numbers into all counters of a file that is in use."""
    store = SharedStore(str(path))
    for stripe in range(store.table.stripes):
        for slot in range(store.table.slots):
            if store.table.is_assigned(stripe, slot):
                cell = store.table.state_at(stripe, slot) >> 3
                store.words[cell + 2] = store.words[cell + 14] = -1
    store.close()
