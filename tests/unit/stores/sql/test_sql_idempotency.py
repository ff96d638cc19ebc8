"""Idempotency rows: created, locked, rolled back, expired, swept. On all three databases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.errors import StoreError
from crestgate.stores.idempotency_codec import encode_record
from crestgate.stores.port import (
    IDEMPOTENCY_TTL_US,
    BatchOutcomes,
    IdempotencyRecord,
    Member,
    Op,
    PartialStoreError,
    Request,
)
from crestgate.stores.sql import SqlStore, sweeper, transaction
from crestgate.stores.sql.idempotency import SqlRecord, read_records
from crestgate.stores.sql.session import DatabaseConnectionError, Session
from crestgate.testing import FakeClock
from databases import KINDS, open_at, url_of

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

        def open_new(clock: FakeClock | None = None, **options: object) -> SqlStore:
            return stack.enter_context(closing(open_at(url, clock, **options)))  # type: ignore[arg-type]  # as given

        yield open_new


@pytest.fixture
def store(opened: Opener) -> SqlStore:
    return opened()


def ask(store: SqlStore, name: str, *keys: str, op: Op = Op.TAKE) -> tuple[IdempotencyRecord, BatchOutcomes]:
    record = IdempotencyRecord(name, BODY, b"note")
    members = [[Member(key, FIVE, 1)] for key in keys] or [[]]
    return record, store.apply([Request(op, some, record) for some in members])


def left(store: SqlStore, key: str = "key") -> int:
    return store.apply([Request(Op.PEEK, [Member(key, FIVE, 0)])])[0][0].decision.remaining


def execute(store: SqlStore, *statements: str) -> list[list[str]]:
    """Run a statement in the database."""
    deadline = time.monotonic() + 20
    session = store.driver.open(deadline)
    try:
        return session.run(statements, deadline)
    finally:
        session.close()


def rows(store: SqlStore) -> list[int]:
    """The expiry times of this store's records."""
    dialect = store.driver.dialect
    prefix = dialect.bytes_of(store.counter_ids.prefix.hex())
    rows = execute(store, f"SELECT {dialect.line('expires_us')} FROM crestgate_idempotency WHERE prefix = {prefix}")[0]
    return [int(line) for line in rows]


def blob(store: SqlStore, name: str) -> str:
    return store.driver.dialect.bytes_of(store.counter_ids.hex_id("", name))


# -- rows -------------------------------------------------------------------------------------------------------------


def test_record_expires_by_the_database_clock(store: SqlStore) -> None:
    ask(store, "n", "key")
    (expires_us,) = rows(store)
    assert abs(expires_us / 1_000_000 - time.time() - 300) < 60
    assert ask(store, "n", "key")[0].replay is not None
    execute(
        store,
        f"UPDATE crestgate_idempotency SET expires_us = expires_us - {IDEMPOTENCY_TTL_US} "
        f"WHERE id = {blob(store, 'n')}",
    )
    assert ask(store, "n", "key")[0].replay is None
    assert left(store) == 3
    assert len(rows(store)) == 1


def test_replay_writes_nothing(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(store, "n", "key")
    statements = record_statements(store, monkeypatch)
    ask(store, "n", "key", "never asked before")
    assert statements[-1] == "ROLLBACK"
    assert "COMMIT" not in statements


def test_batch_without_records_does_not_access_their_table(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = record_statements(store, monkeypatch)
    store.apply([Request(Op.TAKE, [Member("key", FIVE, 1)])])
    assert statements[-1] == "COMMIT"
    assert not any("crestgate_idempotency" in statement for statement in statements)


def record_statements(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that a store sends from now on."""
    sent: list[str] = []
    (session,) = list(store.pool.sessions)[:1]
    run = type(session).run

    def record_and_run(self: Session, statements: Sequence[str], deadline: float) -> list[list[str]]:
        sent.extend(statements)
        return run(self, statements, deadline)

    monkeypatch.setattr(type(session), "run", record_and_run)
    return sent


def test_released_claim_leaves_no_row(store: SqlStore) -> None:
    ask(store, "n", op=Op.CLAIM)
    assert len(rows(store)) == 1
    ask(store, "n", op=Op.RELEASE)
    assert rows(store) == []
    record = IdempotencyRecord("never", BODY, b"")
    store.apply([Request(Op.RELEASE, [], record), Request(Op.TAKE, [Member("key", FIVE, 1)])])
    assert (left(store), rows(store)) == (4, []), "an unclaimed record leaves none either"


def test_claims_and_decisions_in_one_batch(store: SqlStore) -> None:
    claim, other, stored = (
        IdempotencyRecord("a", BODY, b""),
        IdempotencyRecord("b", BODY, b""),
        IdempotencyRecord("c", BODY, b"note"),
    )
    stored.encoded = encode_record(stored, 17, [])
    batch = [
        Request(Op.CLAIM, [], claim),
        Request(Op.TAKE, [Member("key", FIVE, 1)], other),
        Request(Op.SAVE, [], stored),
        Request(Op.CLAIM, [], IdempotencyRecord("a", BODY, b"")),
        Request(Op.RELEASE, [], claim),
        Request(Op.TAKE, [Member("key", FIVE, 1)]),
    ]
    replies = store.apply(batch)
    assert [len(reply) for reply in replies] == [0, 1, 0, 0, 0, 1]
    assert batch[3].record is not None
    assert batch[3].record.pending
    replay = ask(store, "c", "key")[0].replay
    assert replay is not None
    assert (replay.note, replay.now_us, list(replay.numbers)) == (b"note", 17, [])
    assert ask(store, "b", "key")[0].replay is not None
    assert len(rows(store)) == 2


def test_log_that_needs_more_entries_is_decided_once(opened: Opener) -> None:
    clock = FakeClock(1_700_000_000)
    store = opened(clock)
    for _ in range(200):
        store.apply([Request(Op.TAKE, [Member("key", LOG, 1)])])
        clock.advance(0.001)
    clock.advance(59.95)
    for expected in (None, 1):
        record = IdempotencyRecord("n", BODY, b"")
        replies = store.apply([Request(Op.TAKE, [Member("key", LOG, 450)], record)])
        assert (record.replay is None) is (expected is None)
        if expected is None:
            first = replies[0][0].decision
        else:
            assert record.replay is not None
            assert record.replay.numbers[0][:2] == (first.allowed, first.remaining)


# -- roll-back --------------------------------------------------------------------------------------------------------


def test_failure_before_the_commit_leaves_no_row(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert ask(store, "n", "key")[0].replay is None
    assert left(store) == 4


def test_retry_after_a_lost_commit_result_is_replayed(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (session,) = list(store.pool.sessions)[:1]
    run = type(session).run

    def lost(self: Session, statements: Sequence[str], deadline: float) -> list[list[str]]:
        answers = run(self, statements, deadline)
        if statements[-1] == "COMMIT":
            raise DatabaseConnectionError("cut")
        return answers

    monkeypatch.setattr(type(session), "run", lost)
    with pytest.raises(StoreError, match="may have been counted"):
        ask(store, "n", "key")
    monkeypatch.undo()
    record, replies = ask(store, "n", "key")
    assert replies == [[]]
    assert record.replay is not None
    assert record.replay.numbers[0][:2] == (True, 4)
    assert left(store) == 4


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_concurrent_retry_waits_for_the_first(kind: str, opened: Opener, ending: str) -> None:
    """Until that has committed, or was rolled back: then the retry is decided itself."""
    store = opened(prefix=f"waiting {kind} {ending}")
    other = opened(prefix=f"waiting {kind} {ending}")
    dialect = store.driver.dialect
    hex_id = [store.counter_ids.hex_id("", "n")]
    deadline = time.monotonic() + 20
    session = other.driver.open(deadline)
    prefix = store.counter_ids.prefix.hex()
    session.run([dialect.begin, dialect.insert_records(hex_id, prefix), dialect.records(hex_id)], deadline)
    with ThreadPoolExecutor(1) as pool:
        repeat: Future[tuple[IdempotencyRecord, BatchOutcomes]] = pool.submit(ask, store, "n", "key")
        time.sleep(0.05)
        assert not repeat.done()
        stored = encode_record(IdempotencyRecord("n", BODY, b"first"), 7, [])
        session.run(
            [dialect.write_records([(hex_id[0], time.time_ns() // 1000 + IDEMPOTENCY_TTL_US, stored)]), ending],
            deadline,
        )
        record, replies = repeat.result(20)
    session.close()
    if ending == "ROLLBACK":
        assert (record.replay, len(replies[0]), left(store)) == (None, 1, 4)
    else:
        assert record.replay is not None
        assert (record.replay.note, left(store)) == (b"first", 5)


def test_concurrent_retry_waits_no_longer_than_its_deadline(opened: Opener) -> None:
    store = opened(timeout_ms=300)
    ask(store, "n", "key")
    dialect = store.driver.dialect
    deadline = time.monotonic() + 20
    session = store.driver.open(deadline)
    session.run([dialect.begin, dialect.records([store.counter_ids.hex_id("", "n")])], deadline)
    with pytest.raises(StoreError):
        ask(store, "n", "key")
    session.run(["ROLLBACK"], deadline)
    session.close()
    assert ask(opened(prefix=store.counter_ids.prefix.decode()), "n", "key")[0].replay is not None


def test_row_deleted_between_insert_and_lock_is_inserted_again(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper or a released claim may delete it in between."""
    if not transaction.__file__.endswith(".py"):
        pytest.skip("the instant between two lines can only be met in the uncompiled build")
    swept = [True]

    def read(lines: Sequence[str]) -> dict[str, SqlRecord]:
        return {} if swept and swept.pop() else read_records(lines)

    monkeypatch.setattr("crestgate.stores.sql.transaction.read_records", read)
    record, replies = ask(store, "n", "key")
    assert swept == []
    assert (record.replay, len(replies[0]), left(store)) == (None, 1, 4)


# -- sweeping, pieces -------------------------------------------------------------------------------------------------


def test_expired_records_are_swept(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "BATCH_RECORDS", 2)
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
    assert ask(store, "late", "key")[0].replay is not None


def test_failed_piece_is_reported_to_its_claims(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim has no members, so only an error reports its failure."""
    monkeypatch.setattr(store, "max_members", 1)
    takes = [Request(Op.TAKE, [Member(f"key {number}", FIVE, 1)]) for number in range(2)]
    decide = SqlStore._decide
    calls = iter((True, False, False))

    def fail(self: SqlStore, piece: Sequence[Request], deadline: float) -> BatchOutcomes:
        if next(calls):
            return decide(self, piece, deadline)
        raise StoreError("away")

    monkeypatch.setattr(SqlStore, "_decide", fail)
    with pytest.raises(PartialStoreError) as caught:
        store.apply([*takes, Request(Op.CLAIM, [], IdempotencyRecord("n", BODY, b""))])
    replies = caught.value.outcomes
    assert [len(reply) for reply in replies] == [1, 1, 1]
    assert isinstance(replies[2][0], StoreError)
