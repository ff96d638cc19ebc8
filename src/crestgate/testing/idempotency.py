"""Conformance tests for idempotency (see `IdempotencyRecord` in `crestgate.stores.port`).

    class TestMyRecords(IdempotencyConformance):
        def make_store(self, clock):
            return MyStore(clock=clock)

A store of several nodes may set `pending` where others block; the kit then retries, as callers do.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.stores.idempotency_codec import encode_record, record_bytes
from crestgate.stores.port import (
    IDEMPOTENCY_TTL_US,
    MAX_RECORD_BYTES,
    BatchOutcomes,
    IdempotencyRecord,
    Member,
    Op,
    Outcome,
    Replay,
    Request,
    Store,
)
from crestgate.testing.clock import FakeClock
from crestgate.testing.conformance import START, StoreConformance

__all__ = ["IdempotencyConformance"]

FINGERPRINT, OTHER_FINGERPRINT = b"a digest of 16 b", b"another digest.."
NAMES = (
    "a",
    "A",
    "a ",
    "\u00e1",
    "a\u0301",
    "a:b",
    "a{b}",
    "{a}b",
    "a\x00",
    "a\x00b",
    "\U0001f6a6",
    "%",
    "'; --",
    "n" * 300,
)
Numbers = tuple[bool, int, int | None, int]


class IdempotencyConformance:
    """The guarantees for idempotent requests, as tests. Subclass it and implement `make_store`."""

    algorithms: tuple[str, ...] = StoreConformance.algorithms
    threads = StoreConformance.threads
    records_expire_by_clock = True
    """Whether records expire by the clock given to `make_store`. If not, the tests of expiry are skipped."""

    def make_store(self, clock: FakeClock) -> Store:
        """A new, empty store on this clock. The test closes it."""
        raise NotImplementedError("implement make_store(clock)")

    # -- one request ------------------------------------------------------------------------------------------------

    def test_retry_replays_the_first_result_and_consumes_nothing(self) -> None:
        for name in self.algorithms:
            clock = FakeClock(START)
            store = self.make_store(clock)
            algorithm = limit(5, name)
            take(store, algorithm, 1)
            clock.advance(1.5)
            record, outcomes = decide(store, "n", request("key", algorithm, 2))
            assert record.replay is None
            assert numbers_of(outcomes)[0][:2] == (True, 2)
            clock.advance(7)
            before = remaining(store, algorithm)
            for _ in range(2):
                retry, empty = decide(store, "n", request("key", algorithm, 2), note=b"another note")
                assert empty == [[]], name
                assert replay_of(retry).numbers == numbers_of(outcomes), name
                assert (replay_of(retry).fingerprint, replay_of(retry).note) == (FINGERPRINT, b"a note")
                assert replay_of(retry).now_us == round((START + 1.5) * 1_000_000)
                assert remaining(store, algorithm) == before, (name, "a retry must not consume")
            store.close()

    def test_denial_is_replayed(self) -> None:
        for name in self.algorithms:
            clock = FakeClock(START)
            store = self.make_store(clock)
            algorithm = limit(2, name)
            take(store, algorithm, 2)
            _, outcomes = decide(store, "n", request("key", algorithm))
            _, never = decide(store, "never", request("key", algorithm, 3))
            assert not outcomes[0][0].decision.allowed
            clock.advance(180)
            assert remaining(store, algorithm) == 2
            assert replay_of(decide(store, "n", request("key", algorithm))[0]).numbers == numbers_of(outcomes), name
            assert replay_of(decide(store, "never", request("key", algorithm, 3))[0]).numbers == numbers_of(never), name
            assert remaining(store, algorithm) == 2
            store.close()

    def test_other_fingerprint_of_the_same_name_is_reported(self) -> None:
        store = self.make_store(FakeClock(START))
        five = limit(5)
        decide(store, "n", request("key", five))
        other, outcomes = decide(store, "n", request("another key", five), fingerprint=OTHER_FINGERPRINT)
        assert outcomes == [[]]
        assert replay_of(other).fingerprint == FINGERPRINT
        assert remaining(store, five, "another key") == 5
        store.close()

    def test_names_are_isolated(self) -> None:
        store = self.make_store(FakeClock(START))
        many = limit(1000)
        for number, name in enumerate(NAMES):
            record, _ = decide(store, name, request("key", many, number))
            assert record.replay is None, name
        for number, name in enumerate(NAMES):
            replay = replay_of(decide(store, name, request("key", many, number))[0])
            assert replay.numbers[0][1] == 1000 - sum(range(number + 1)), name
        take(store, many, 1, "a")
        assert remaining(store, many, "a") == 999, "a record is not a counter"
        store.close()

    def test_record_expires_after_its_ttl(self) -> None:
        if not self.records_expire_by_clock:
            return
        clock = FakeClock(START)
        store = self.make_store(clock)
        five = limit(5, "fixed_window", 86_400)
        decide(store, "n", request("key", five))
        clock.advance((IDEMPOTENCY_TTL_US - 1) / 1_000_000)
        assert decide(store, "n", request("key", five))[0].replay is not None
        assert remaining(store, five) == 4
        clock.advance(0.000001)
        assert decide(store, "n", request("key", five))[0].replay is None
        assert remaining(store, five) == 3
        clock.advance((IDEMPOTENCY_TTL_US - 1) / 1_000_000)
        assert decide(store, "n", request("key", five))[0].replay is not None, "its TTL starts again"
        store.close()

    # -- groups and batches -----------------------------------------------------------------------------------------

    def test_group_is_replayed_as_a_whole(self) -> None:
        store = self.make_store(FakeClock(START))
        three, five = limit(3, name="three"), limit(5, name="five")
        shadow = limit(1, name="shadow")

        def group() -> list[Request]:
            return [
                Request(Op.TAKE, [Member("key", three, 2), Member("key", shadow, 1, binds=False)]),
                Request(Op.TAKE, [Member("key", five, 1), Member("key", three, 2)]),
                Request(Op.TAKE, [Member("key", five, 1), Member("key", shadow, 1, binds=False)]),
                Request(Op.TAKE, [Member("other", five, 2), Member("third", five, 1)]),
                Request(Op.PEEK, [Member("key", three, 1)]),
            ]

        _, outcomes = decide(store, "n", *group())
        verdicts = [[outcome.decision.allowed for outcome in reply] for reply in outcomes]
        assert verdicts == [[True, True], [True, False], [True, False], [True, True], [True]]
        retry, empty = decide(store, "n", *group())
        assert empty == [[]] * 5
        assert replay_of(retry).numbers == numbers_of(outcomes)
        assert [remaining(store, three), remaining(store, five)] == [1, 4]
        assert [remaining(store, five, "other"), remaining(store, five, "third")] == [3, 4]
        store.close()

    def test_retries_in_one_batch_replay_the_first(self) -> None:
        store = self.make_store(FakeClock(START))
        five = limit(5)
        records = [
            IdempotencyRecord("n", FINGERPRINT, b"1"),
            IdempotencyRecord("n", FINGERPRINT, b"2"),
            IdempotencyRecord("m", FINGERPRINT, b"3"),
            IdempotencyRecord("n", OTHER_FINGERPRINT, b"4"),
        ]
        batch: list[Request] = []
        for record in records:
            batch += [Request(Op.TAKE, [Member(key, five, 1)], record) for key in ("a", "b", "c")]
            batch.append(request("a", five))
        outcomes = store.apply(batch)
        assert [len(reply) for reply in outcomes] == [1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1]
        assert [record.replay is not None for record in records] == [False, True, False, True]
        assert replay_of(records[3]).note == b"1"
        assert replay_of(records[1]).numbers == numbers_of(outcomes[:3])
        assert [remaining(store, five, "b"), remaining(store, five, "c")] == [3, 3]
        store.close()

    def test_request_without_members_is_recorded(self) -> None:
        store = self.make_store(FakeClock(START))
        five = limit(5)
        _, outcomes = decide(store, "n", Request(Op.TAKE, []), request("key", five))
        assert [len(reply) for reply in outcomes] == [0, 1]
        _, empty = decide(store, "m", Request(Op.TAKE, []))
        assert empty == [[]]
        assert replay_of(decide(store, "n", request("key", five))[0]).numbers == numbers_of(outcomes)
        assert replay_of(decide(store, "m", request("key", five))[0]).numbers == []
        assert remaining(store, five) == 4
        store.close()

    def test_group_of_a_thousand_requests(self) -> None:
        store = self.make_store(FakeClock(START))
        many = limit(10_000)
        note = bytes(range(256)) * 200
        group = [request(f"key {number % 20}", many) for number in range(1000)]
        _, outcomes = decide(store, "n", *group, note=note)
        assert [len(reply) for reply in outcomes] == [1] * 1000
        retry, empty = decide(store, "n", *group)
        assert empty == [[]] * 1000
        assert replay_of(retry).note == note
        assert replay_of(retry).numbers == numbers_of(outcomes)
        assert [remaining(store, many, f"key {number}") for number in range(20)] == [10_000 - 50] * 20
        store.close()

    def test_record_size_limit(self) -> None:
        store = self.make_store(FakeClock(START))
        many = limit(1000)
        group = [request(f"key {number}", many) for number in range(20)]
        note = bytes(MAX_RECORD_BYTES - record_bytes(0, 20))
        try:
            decide(store, "n", request("key 0", many), request("key 1", many), *group, note=note)
        except ValueError as error:  # a failure policy would handle a StoreError
            error_message: str | None = str(error)
        else:
            error_message = None
        assert error_message is not None, "a record that is too long must be a ValueError"
        assert [remaining(store, many, f"key {number}") for number in range(20)] == [1000] * 20, "nothing decided"
        for name in ("n", "m", "o"):
            _, outcomes = decide(store, name, *group, note=note)
            retry, _ = decide(store, name, *group)
            assert replay_of(retry).note == note
            assert replay_of(retry).numbers == numbers_of(outcomes)
        assert [remaining(store, many, f"key {number}") for number in range(20)] == [997] * 20
        store.close()

    # -- races ------------------------------------------------------------------------------------------------------

    def test_concurrent_retries_are_decided_once(self) -> None:
        store = self.make_store(FakeClock(START))
        many = limit(100_000)
        for round_ in range(10):
            barrier = Barrier(self.threads)

            def race(name: str = f"n{round_}", barrier: Barrier = barrier) -> tuple[list[Numbers], bool]:
                barrier.wait()
                record, outcomes = decide(store, name, *(request(f"key {number}", many) for number in range(4)))
                return (numbers_of(outcomes), True) if record.replay is None else (list(record.replay.numbers), False)

            with ThreadPoolExecutor(self.threads) as pool:
                results = [future.result() for future in [pool.submit(race) for _ in range(self.threads)]]
            assert sum(decided for _, decided in results) == 1
            assert all(numbers == results[0][0] for numbers, _ in results), "all got the same result"
            assert [remaining(store, many, f"key {number}") for number in range(4)] == [100_000 - round_ - 1] * 4
        store.close()

    # -- claims -----------------------------------------------------------------------------------------------------

    def test_claim_is_pending_until_saved(self) -> None:
        store = self.make_store(FakeClock(START))
        five = limit(5)
        first = apply_to_record(store, Op.CLAIM)
        assert (first.replay, first.pending) == (None, False)
        second = apply_to_record(store, Op.CLAIM, OTHER_FINGERPRINT)
        assert (second.replay, second.pending) == (None, True)
        blocked = IdempotencyRecord("n", FINGERPRINT, b"")
        assert store.apply([Request(Op.TAKE, [Member("key", five, 1)], blocked)]) == [[]]
        assert (blocked.replay, blocked.pending) == (None, True)
        assert remaining(store, five) == 5
        first.encoded = encode_record(first, 1_700_000_000_000_000, [[Outcome(Decision(five, True, 3, 0, 7, None), 0)]])
        assert store.apply([Request(Op.SAVE, [], first)]) == [[]]
        third = apply_to_record(store, Op.CLAIM, OTHER_FINGERPRINT)
        assert third.pending is False
        assert (replay_of(third).fingerprint, replay_of(third).numbers) == (FINGERPRINT, [(True, 3, 0, 7)])
        store.close()

    def test_release_deletes_a_claim_but_no_result(self) -> None:
        store = self.make_store(FakeClock(START))
        five = limit(5)
        apply_to_record(store, Op.CLAIM)
        apply_to_record(store, Op.RELEASE)
        assert decide(store, "n", request("key", five))[0].replay is None
        apply_to_record(store, Op.RELEASE)
        assert decide(store, "n", request("key", five))[0].replay is not None
        apply_to_record(store, Op.RELEASE, name="never claimed")
        store.close()

    def test_claim_expires_after_its_ttl(self) -> None:
        if not self.records_expire_by_clock:
            return
        clock = FakeClock(START)
        store = self.make_store(clock)
        apply_to_record(store, Op.CLAIM)
        clock.advance((IDEMPOTENCY_TTL_US - 1) / 1_000_000)
        assert apply_to_record(store, Op.CLAIM).pending
        clock.advance(0.000001)
        assert not apply_to_record(store, Op.CLAIM).pending
        store.close()


def limit(count: int, algorithm: str = "token_bucket", period: float = 60, name: str = "limit") -> Algorithm:
    return build(Limit(count, period, algorithm=algorithm), name)


def request(key: str, algorithm: Algorithm, cost: int = 1) -> Request:
    return Request(Op.TAKE, [Member(key, algorithm, cost)])


def decide(
    store: Store, name: str, *requests: Request, fingerprint: bytes = FINGERPRINT, note: bytes = b"a note"
) -> tuple[IdempotencyRecord, BatchOutcomes]:
    """Decide requests as one idempotent group; retried while another caller is deciding it."""
    while True:
        record = IdempotencyRecord(name, fingerprint, note)
        outcomes = store.apply([Request(request.op, request.members, record) for request in requests])
        if not record.pending:
            return record, outcomes


def apply_to_record(store: Store, op: Op, fingerprint: bytes = FINGERPRINT, name: str = "n") -> IdempotencyRecord:
    record = IdempotencyRecord(name, fingerprint, b"")
    assert store.apply([Request(op, [], record)]) == [[]]
    return record


def take(store: Store, algorithm: Algorithm, cost: int, key: str = "key") -> None:
    store.apply([request(key, algorithm, cost)])


def remaining(store: Store, algorithm: Algorithm, key: str = "key") -> int:
    return store.apply([Request(Op.PEEK, [Member(key, algorithm, 0)])])[0][0].decision.remaining


def replay_of(record: IdempotencyRecord) -> Replay:
    assert record.replay is not None, "no result was recorded"
    return record.replay


def numbers_of(outcomes: Sequence[Sequence[Outcome]]) -> list[Numbers]:
    """The numbers that a replay of these outcomes must have."""
    decisions = [outcome.decision for reply in outcomes for outcome in reply]
    return [(d.allowed, d.remaining, d.wait_us, d.reset_us) for d in decisions]
