"""Rows of what was decided once: made, locked, rolled back, expired, swept. On all three databases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from databases import KINDS, open_at, url_of
from headgate.core.algorithms import build
from headgate.core.limit import Limit
from headgate.errors import StoreError
from headgate.stores.keeping import pack_kept
from headgate.stores.port import ONCE_US, Member, Once, Op, PartlyAnswered, Replies, Request
from headgate.stores.sql import SqlStore, sweeper, transaction
from headgate.stores.sql.records import SqlRecord, read_records
from headgate.stores.sql.session import Broken, Session
from headgate.testing import FakeClock

BODY = b"a digest of 16 b"
FIVE = build(Limit(5, 86_400, algorithm="fixed_window"), "five")
LOG = build(Limit(500, 60, algorithm="sliding_window_log"), "log")
Opener = Callable[..., SqlStore]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def url(kind: str, request: pytest.FixtureRequest) -> str:
    return url_of(kind, request)


@pytest.fixture
def opened(url: str) -> Iterator[Opener]:
    with ExitStack() as stack:

        def open_one(clock: FakeClock | None = None, **options: object) -> SqlStore:
            return stack.enter_context(closing(open_at(url, clock, **options)))  # type: ignore[arg-type]  # as given

        yield open_one


@pytest.fixture
def store(opened: Opener) -> SqlStore:
    return opened()


def ask(store: SqlStore, name: str, *keys: str, op: Op = Op.TAKE) -> tuple[Once, Replies]:
    once = Once(name, BODY, b"note")
    members = [[Member(key, FIVE, 1)] for key in keys] or [[]]
    return once, store.apply([Request(op, some, once) for some in members])


def left(store: SqlStore, key: str = "key") -> int:
    return store.apply([Request(Op.PEEK, [Member(key, FIVE, 0)])])[0][0].decision.remaining


def say(store: SqlStore, *statements: str) -> list[list[str]]:
    """Have the database do something in between."""
    deadline = time.monotonic() + 20
    session = store.driver.open(deadline)
    try:
        return session.run(statements, deadline)
    finally:
        session.close()


def rows(store: SqlStore) -> list[int]:
    """When the records that this store has made expire."""
    dialect = store.driver.dialect
    prefix = dialect.bytes_of(store.identities.prefix.hex())
    found = say(store, f"SELECT {dialect.line('expires_us')} FROM headgate_once WHERE prefix = {prefix}")[0]
    return [int(line) for line in found]


def blob(store: SqlStore, name: str) -> str:
    return store.driver.dialect.bytes_of(store.identities.digits("", name))


# -- rows -------------------------------------------------------------------------------------------------------------


def test_a_record_is_a_row_for_five_minutes_by_the_clock_of_the_database(store: SqlStore) -> None:
    ask(store, "n", "key")
    (expires_us,) = rows(store)
    assert abs(expires_us / 1_000_000 - time.time() - 300) < 60
    assert ask(store, "n", "key")[0].kept is not None
    say(store, f"UPDATE headgate_once SET expires_us = expires_us - {ONCE_US} WHERE id = {blob(store, 'n')}")
    assert ask(store, "n", "key")[0].kept is None
    assert left(store) == 3
    assert len(rows(store)) == 1


def test_what_only_repeats_writes_nothing(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(store, "n", "key")
    said = heard(store, monkeypatch)
    ask(store, "n", "key", "never asked before")
    assert said[-1] == "ROLLBACK"
    assert "COMMIT" not in said


def test_a_batch_without_records_says_nothing_about_them(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    said = heard(store, monkeypatch)
    store.apply([Request(Op.TAKE, [Member("key", FIVE, 1)])])
    assert said[-1] == "COMMIT"
    assert not any("headgate_once" in statement for statement in said)


def heard(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that a store says from here on."""
    said: list[str] = []
    (session,) = list(store.pool.sessions)[:1]
    run = type(session).run

    def listening(self: Session, statements: Sequence[str], deadline: float) -> list[list[str]]:
        said.extend(statements)
        return run(self, statements, deadline)

    monkeypatch.setattr(type(session), "run", listening)
    return said


def test_a_claim_that_is_released_leaves_no_row(store: SqlStore) -> None:
    ask(store, "n", op=Op.CLAIM)
    assert len(rows(store)) == 1
    ask(store, "n", op=Op.RELEASE)
    assert rows(store) == []
    once = Once("never", BODY, b"")
    store.apply([Request(Op.RELEASE, [], once), Request(Op.TAKE, [Member("key", FIVE, 1)])])
    assert (left(store), rows(store)) == (4, []), "nor does one that was never claimed, when something else is written"


def test_claims_and_what_is_decided_in_one_batch(store: SqlStore) -> None:
    claim, other, kept = Once("a", BODY, b""), Once("b", BODY, b""), Once("c", BODY, b"note")
    kept.packed = pack_kept(kept, 17, [])
    batch = [
        Request(Op.CLAIM, [], claim),
        Request(Op.TAKE, [Member("key", FIVE, 1)], other),
        Request(Op.KEEP, [], kept),
        Request(Op.CLAIM, [], Once("a", BODY, b"")),
        Request(Op.RELEASE, [], claim),
        Request(Op.TAKE, [Member("key", FIVE, 1)]),
    ]
    replies = store.apply(batch)
    assert [len(reply) for reply in replies] == [0, 1, 0, 0, 0, 1]
    assert batch[3].once is not None
    assert batch[3].once.pending
    found = ask(store, "c", "key")[0].kept
    assert found is not None
    assert (found.note, found.now_us, list(found.numbers)) == (b"note", 17, [])
    assert ask(store, "b", "key")[0].kept is not None
    assert len(rows(store)) == 2


def test_a_log_that_must_be_read_further_is_decided_once_all_the_same(opened: Opener) -> None:
    clock = FakeClock(1_700_000_000)
    store = opened(clock)
    for _ in range(200):
        store.apply([Request(Op.TAKE, [Member("key", LOG, 1)])])
        clock.advance(0.001)
    clock.advance(59.95)
    for expected in (None, 1):
        once = Once("n", BODY, b"")
        replies = store.apply([Request(Op.TAKE, [Member("key", LOG, 450)], once)])
        assert (once.kept is None) is (expected is None)
        if expected is None:
            first = replies[0][0].decision
        else:
            assert once.kept is not None
            assert once.kept.numbers[0][:2] == (first.allowed, first.remaining)


# -- roll-back --------------------------------------------------------------------------------------------------------


def test_what_fails_before_the_commit_leaves_no_row(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (session,) = list(store.pool.sessions)[:1]
    run = type(session).run

    def fail(self: Session, statements: Sequence[str], deadline: float) -> list[list[str]]:
        if statements[-1] == "COMMIT":
            raise RuntimeError("in the middle")
        return run(self, statements, deadline)

    monkeypatch.setattr(type(session), "run", fail)
    with pytest.raises((RuntimeError, StoreError), match="in the middle"):
        ask(store, "n", "key")
    monkeypatch.undo()
    assert rows(store) == []
    assert ask(store, "n", "key")[0].kept is None
    assert left(store) == 4


def test_a_commit_whose_answer_was_lost_is_found_by_the_repeat(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (session,) = list(store.pool.sessions)[:1]
    run = type(session).run

    def lost(self: Session, statements: Sequence[str], deadline: float) -> list[list[str]]:
        answers = run(self, statements, deadline)
        if statements[-1] == "COMMIT":
            raise Broken("cut")
        return answers

    monkeypatch.setattr(type(session), "run", lost)
    with pytest.raises(StoreError, match="may have been counted"):
        ask(store, "n", "key")
    monkeypatch.undo()
    once, replies = ask(store, "n", "key")
    assert replies == [[]]
    assert once.kept is not None
    assert once.kept.numbers[0][:2] == (True, 4)
    assert left(store) == 4


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_a_repeat_waits_for_the_first(kind: str, opened: Opener, ending: str) -> None:
    """Until it has committed, or was rolled back: then it is decided itself."""
    store = opened(prefix=f"waiting {kind} {ending}")
    other = opened(prefix=f"waiting {kind} {ending}")
    dialect = store.driver.dialect
    digits = [store.identities.digits("", "n")]
    deadline = time.monotonic() + 20
    session = other.driver.open(deadline)
    prefix = store.identities.prefix.hex()
    session.run([dialect.begin, dialect.insert_records(digits, prefix), dialect.records(digits)], deadline)
    with ThreadPoolExecutor(1) as pool:
        repeat: Future[tuple[Once, Replies]] = pool.submit(ask, store, "n", "key")
        time.sleep(0.05)
        assert not repeat.done()
        kept = pack_kept(Once("n", BODY, b"first"), 7, [])
        session.run([dialect.write_records([(digits[0], time.time_ns() // 1000 + ONCE_US, kept)]), ending], deadline)
        once, replies = repeat.result(20)
    session.close()
    if ending == "ROLLBACK":
        assert (once.kept, len(replies[0]), left(store)) == (None, 1, 4)
    else:
        assert once.kept is not None
        assert (once.kept.note, left(store)) == (b"first", 5)


def test_a_repeat_waits_no_longer_than_its_deadline(opened: Opener) -> None:
    store = opened(timeout_ms=300)
    ask(store, "n", "key")
    dialect = store.driver.dialect
    deadline = time.monotonic() + 20
    session = store.driver.open(deadline)
    session.run([dialect.begin, dialect.records([store.identities.digits("", "n")])], deadline)
    with pytest.raises(StoreError):
        ask(store, "n", "key")
    session.run(["ROLLBACK"], deadline)
    session.close()
    assert ask(opened(prefix=store.identities.prefix.decode()), "n", "key")[0].kept is not None


def test_a_row_that_goes_between_making_and_locking_is_made_anew(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper, or a claim that is released, may take it just then."""
    if not transaction.__file__.endswith(".py"):
        pytest.skip("the instant between two lines can only be met in the uncompiled build")
    swept = [True]

    def read(lines: Sequence[str]) -> dict[str, SqlRecord]:
        return {} if swept and swept.pop() else read_records(lines)

    monkeypatch.setattr("headgate.stores.sql.transaction.read_records", read)
    once, replies = ask(store, "n", "key")
    assert swept == []
    assert (once.kept, len(replies[0]), left(store)) == (None, 1, 4)


# -- sweeping, pieces -------------------------------------------------------------------------------------------------


def test_records_are_swept_when_their_time_is_over(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "BITE_OF_RECORDS", 2)
    clock = FakeClock(1_700_000_000)
    store, other = opened(clock), opened(FakeClock(1_700_000_000))
    ask(other, "n", "key")
    for number in range(5):
        ask(store, f"n{number}", "key")
    clock.advance(299)
    ask(store, "late", "key")
    assert store.sweep() == 0
    clock.advance(1.1)
    while store.sweep():
        pass
    assert len(rows(store)) == 1
    assert len(rows(other)) == 1, "of another clock"
    assert ask(store, "late", "key")[0].kept is not None


def test_pieces_that_fail_are_told_to_those_who_claim(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim has no members, so only an error says that it was not made."""
    monkeypatch.setattr(store, "most_members", 1)
    takes = [Request(Op.TAKE, [Member(f"key {number}", FIVE, 1)]) for number in range(2)]
    decide = SqlStore._decide
    calls = iter((True, False, False))

    def fail(self: SqlStore, piece: Sequence[Request], deadline: float) -> Replies:
        if next(calls):
            return decide(self, piece, deadline)
        raise StoreError("away")

    monkeypatch.setattr(SqlStore, "_decide", fail)
    with pytest.raises(PartlyAnswered) as caught:
        store.apply([*takes, Request(Op.CLAIM, [], Once("n", BODY, b""))])
    replies = caught.value.replies
    assert [len(reply) for reply in replies] == [1, 1, 1]
    assert isinstance(replies[2][0], StoreError)
