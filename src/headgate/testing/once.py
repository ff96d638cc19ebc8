"""The part of the kit for stores that keep what was decided once (see `Once` in `headgate.stores.port`).

    class TestMyRecords(OnceConformance):
        def make_store(self, clock):
            return MyStore(clock=clock)

A store of several places may say `pending` where others wait for each other; the kit then asks again, as callers do.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from headgate.core.algorithms import Algorithm, build
from headgate.core.decision import Decision
from headgate.core.limit import Limit
from headgate.stores.keeping import kept_bytes, pack_kept
from headgate.stores.port import (
    MOST_KEPT_BYTES,
    ONCE_US,
    Kept,
    Member,
    Once,
    Op,
    Outcome,
    Replies,
    Request,
    Store,
)
from headgate.testing.clock import FakeClock
from headgate.testing.conformance import START, StoreConformance

__all__ = ["OnceConformance"]

BODY, OTHER_BODY = b"a digest of 16 b", b"another digest.."
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


class OnceConformance:
    """What a store promises of requests that are decided once, as tests. Subclass it and implement `make_store`."""

    algorithms: tuple[str, ...] = StoreConformance.algorithms
    threads = StoreConformance.threads
    forgets_by_the_clock = True
    """Whether records expire by the clock that the store was given. If not, that they do is for other tests to show."""

    def make_store(self, clock: FakeClock) -> Store:
        """A new, empty store on this clock. Closed by the test that asked for it."""
        raise NotImplementedError("say how a store is made")

    # -- one request ------------------------------------------------------------------------------------------------

    def test_a_repeat_gets_the_first_answer_and_consumes_nothing(self) -> None:
        for name in self.algorithms:
            clock = FakeClock(START)
            store = self.make_store(clock)
            algorithm = limit(5, name)
            take(store, algorithm, 1)
            clock.advance(1.5)
            once, replies = decide(store, "n", request("key", algorithm, 2))
            assert once.kept is None
            assert numbers_of(replies)[0][:2] == (True, 2)
            clock.advance(7)
            before = left(store, algorithm)
            for _ in range(2):
                repeat, none = decide(store, "n", request("key", algorithm, 2), note=b"another note")
                assert none == [[]], name
                assert kept_in(repeat).numbers == numbers_of(replies), name
                assert (kept_in(repeat).body, kept_in(repeat).note) == (BODY, b"a note")
                assert kept_in(repeat).now_us == round((START + 1.5) * 1_000_000)
                assert left(store, algorithm) == before, (name, "a repeat must not consume")
            store.close()

    def test_a_denial_is_kept_too(self) -> None:
        for name in self.algorithms:
            clock = FakeClock(START)
            store = self.make_store(clock)
            algorithm = limit(2, name)
            take(store, algorithm, 2)
            _, replies = decide(store, "n", request("key", algorithm))
            _, never = decide(store, "never", request("key", algorithm, 3))
            assert not replies[0][0].decision.allowed
            clock.advance(180)
            assert left(store, algorithm) == 2
            assert kept_in(decide(store, "n", request("key", algorithm))[0]).numbers == numbers_of(replies), name
            assert kept_in(decide(store, "never", request("key", algorithm, 3))[0]).numbers == numbers_of(never), name
            assert left(store, algorithm) == 2
            store.close()

    def test_another_body_under_the_same_name_is_told_apart(self) -> None:
        store = self.make_store(FakeClock(START))
        five = limit(5)
        decide(store, "n", request("key", five))
        other, replies = decide(store, "n", request("another key", five), body=OTHER_BODY)
        assert replies == [[]]
        assert kept_in(other).body == BODY
        assert left(store, five, "another key") == 5
        store.close()

    def test_names_are_kept_apart(self) -> None:
        store = self.make_store(FakeClock(START))
        many = limit(1000)
        for number, name in enumerate(NAMES):
            once, _ = decide(store, name, request("key", many, number))
            assert once.kept is None, name
        for number, name in enumerate(NAMES):
            kept = kept_in(decide(store, name, request("key", many, number))[0])
            assert kept.numbers[0][1] == 1000 - sum(range(number + 1)), name
        take(store, many, 1, "a")
        assert left(store, many, "a") == 999, "a record is no counter"
        store.close()

    def test_five_minutes_later_it_is_decided_anew(self) -> None:
        if not self.forgets_by_the_clock:
            return
        clock = FakeClock(START)
        store = self.make_store(clock)
        five = limit(5, "fixed_window", 86_400)
        decide(store, "n", request("key", five))
        clock.advance((ONCE_US - 1) / 1_000_000)
        assert decide(store, "n", request("key", five))[0].kept is not None
        assert left(store, five) == 4
        clock.advance(0.000001)
        assert decide(store, "n", request("key", five))[0].kept is None
        assert left(store, five) == 3
        clock.advance((ONCE_US - 1) / 1_000_000)
        assert decide(store, "n", request("key", five))[0].kept is not None, "its five minutes begin anew"
        store.close()

    # -- groups and batches -----------------------------------------------------------------------------------------

    def test_a_group_is_decided_once_as_a_whole(self) -> None:
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

        _, replies = decide(store, "n", *group())
        verdicts = [[outcome.decision.allowed for outcome in reply] for reply in replies]
        assert verdicts == [[True, True], [True, False], [True, False], [True, True], [True]]
        repeat, none = decide(store, "n", *group())
        assert none == [[]] * 5
        assert kept_in(repeat).numbers == numbers_of(replies)
        assert [left(store, three), left(store, five)] == [1, 4]
        assert [left(store, five, "other"), left(store, five, "third")] == [3, 4]
        store.close()

    def test_repeats_in_one_batch_find_the_first(self) -> None:
        store = self.make_store(FakeClock(START))
        five = limit(5)
        onces = [Once("n", BODY, b"1"), Once("n", BODY, b"2"), Once("m", BODY, b"3"), Once("n", OTHER_BODY, b"4")]
        batch: list[Request] = []
        for once in onces:
            batch += [Request(Op.TAKE, [Member(key, five, 1)], once) for key in ("a", "b", "c")]
            batch.append(request("a", five))
        replies = store.apply(batch)
        assert [len(reply) for reply in replies] == [1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1]
        assert [once.kept is not None for once in onces] == [False, True, False, True]
        assert kept_in(onces[3]).note == b"1"
        assert kept_in(onces[1]).numbers == numbers_of(replies[:3])
        assert [left(store, five, "b"), left(store, five, "c")] == [3, 3]
        store.close()

    def test_a_request_without_members_is_kept_too(self) -> None:
        store = self.make_store(FakeClock(START))
        five = limit(5)
        _, replies = decide(store, "n", Request(Op.TAKE, []), request("key", five))
        assert [len(reply) for reply in replies] == [0, 1]
        _, none = decide(store, "m", Request(Op.TAKE, []))
        assert none == [[]]
        assert kept_in(decide(store, "n", request("key", five))[0]).numbers == numbers_of(replies)
        assert kept_in(decide(store, "m", request("key", five))[0]).numbers == []
        assert left(store, five) == 4
        store.close()

    def test_a_thousand_requests_are_one_group(self) -> None:
        store = self.make_store(FakeClock(START))
        many = limit(10_000)
        note = bytes(range(256)) * 200
        group = [request(f"key {number % 20}", many) for number in range(1000)]
        _, replies = decide(store, "n", *group, note=note)
        assert [len(reply) for reply in replies] == [1] * 1000
        repeat, none = decide(store, "n", *group)
        assert none == [[]] * 1000
        assert kept_in(repeat).note == note
        assert kept_in(repeat).numbers == numbers_of(replies)
        assert [left(store, many, f"key {number}") for number in range(20)] == [10_000 - 50] * 20
        store.close()

    def test_the_longest_record_is_kept_and_a_longer_one_is_refused(self) -> None:
        store = self.make_store(FakeClock(START))
        many = limit(1000)
        group = [request(f"key {number}", many) for number in range(20)]
        note = bytes(MOST_KEPT_BYTES - kept_bytes(0, 20))
        try:
            decide(store, "n", request("key 0", many), request("key 1", many), *group, note=note)
        except ValueError as error:  # a StoreError would be answered by a failure policy
            refused: str | None = str(error)
        else:
            refused = None
        assert refused is not None, "a record that is too long must be a ValueError"
        assert [left(store, many, f"key {number}") for number in range(20)] == [1000] * 20, "nothing is decided then"
        for name in ("n", "m", "o"):
            _, replies = decide(store, name, *group, note=note)
            repeat, _ = decide(store, name, *group)
            assert kept_in(repeat).note == note
            assert kept_in(repeat).numbers == numbers_of(replies)
        assert [left(store, many, f"key {number}") for number in range(20)] == [997] * 20
        store.close()

    # -- races ------------------------------------------------------------------------------------------------------

    def test_of_threads_that_race_exactly_one_is_decided(self) -> None:
        store = self.make_store(FakeClock(START))
        many = limit(100_000)
        for round_ in range(10):
            barrier = Barrier(self.threads)

            def race(name: str = f"n{round_}", barrier: Barrier = barrier) -> tuple[list[Numbers], bool]:
                barrier.wait()
                once, replies = decide(store, name, *(request(f"key {number}", many) for number in range(4)))
                return (numbers_of(replies), True) if once.kept is None else (list(once.kept.numbers), False)

            with ThreadPoolExecutor(self.threads) as pool:
                answers = [future.result() for future in [pool.submit(race) for _ in range(self.threads)]]
            assert sum(decided for _, decided in answers) == 1
            assert all(numbers == answers[0][0] for numbers, _ in answers), "all got the same answer"
            assert [left(store, many, f"key {number}") for number in range(4)] == [100_000 - round_ - 1] * 4
        store.close()

    # -- records of what is decided elsewhere -------------------------------------------------------------------------

    def test_a_claim_is_pending_until_it_is_kept(self) -> None:
        store = self.make_store(FakeClock(START))
        five = limit(5)
        first = of_record(store, Op.CLAIM)
        assert (first.kept, first.pending) == (None, False)
        second = of_record(store, Op.CLAIM, OTHER_BODY)
        assert (second.kept, second.pending) == (None, True)
        asked = Once("n", BODY, b"")
        assert store.apply([Request(Op.TAKE, [Member("key", five, 1)], asked)]) == [[]]
        assert (asked.kept, asked.pending) == (None, True)
        assert left(store, five) == 5
        first.packed = pack_kept(first, 1_700_000_000_000_000, [[Outcome(Decision(five, True, 3, 0, 7, None), 0)]])
        assert store.apply([Request(Op.KEEP, [], first)]) == [[]]
        third = of_record(store, Op.CLAIM, OTHER_BODY)
        assert third.pending is False
        assert (kept_in(third).body, kept_in(third).numbers) == (BODY, [(True, 3, 0, 7)])
        store.close()

    def test_a_claim_can_be_released_and_what_is_kept_cannot(self) -> None:
        store = self.make_store(FakeClock(START))
        five = limit(5)
        of_record(store, Op.CLAIM)
        of_record(store, Op.RELEASE)
        assert decide(store, "n", request("key", five))[0].kept is None
        of_record(store, Op.RELEASE)
        assert decide(store, "n", request("key", five))[0].kept is not None
        of_record(store, Op.RELEASE, name="never claimed")
        store.close()

    def test_a_claim_is_forgotten_like_every_record(self) -> None:
        if not self.forgets_by_the_clock:
            return
        clock = FakeClock(START)
        store = self.make_store(clock)
        of_record(store, Op.CLAIM)
        clock.advance((ONCE_US - 1) / 1_000_000)
        assert of_record(store, Op.CLAIM).pending
        clock.advance(0.000001)
        assert not of_record(store, Op.CLAIM).pending
        store.close()


def limit(count: int, algorithm: str = "token_bucket", period: float = 60, name: str = "limit") -> Algorithm:
    return build(Limit(count, period, algorithm=algorithm), name)


def request(key: str, algorithm: Algorithm, cost: int = 1) -> Request:
    return Request(Op.TAKE, [Member(key, algorithm, cost)])


def decide(
    store: Store, name: str, *requests: Request, body: bytes = BODY, note: bytes = b"a note"
) -> tuple[Once, Replies]:
    """Decide requests as one group, and ask again while somebody else is deciding it."""
    while True:
        once = Once(name, body, note)
        replies = store.apply([Request(request.op, request.members, once) for request in requests])
        if not once.pending:
            return once, replies


def of_record(store: Store, op: Op, body: bytes = BODY, name: str = "n") -> Once:
    once = Once(name, body, b"")
    assert store.apply([Request(op, [], once)]) == [[]]
    return once


def take(store: Store, algorithm: Algorithm, cost: int, key: str = "key") -> None:
    store.apply([request(key, algorithm, cost)])


def left(store: Store, algorithm: Algorithm, key: str = "key") -> int:
    return store.apply([Request(Op.PEEK, [Member(key, algorithm, 0)])])[0][0].decision.remaining


def kept_in(once: Once) -> Kept:
    assert once.kept is not None, "nothing was kept"
    return once.kept


def numbers_of(replies: Sequence[Sequence[Outcome]]) -> list[Numbers]:
    """What a record should say of these outcomes."""
    decisions = [outcome.decision for reply in replies for outcome in reply]
    return [(d._allowed, d._remaining, d._wait, d._reset) for d in decisions]
