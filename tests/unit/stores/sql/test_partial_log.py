"""A log loaded only at its ends gives the same results as the whole log, or asks for more entries."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.core.state import ListLog
from crestgate.stores.sql.partial_log import EMPTY_LOG, UNREAD, Entries, LogEnds, NeedMoreEntriesError, PartialLog
from example_counts import examples

Questions = list[tuple[str, int, int]]


def whole_log(entries: Entries) -> ListLog:
    log = ListLog()
    for tick, cost in entries:
        log.append(tick, cost)
    return log


def partial(entries: Entries, front: int, back: int, named: list[int]) -> PartialLog:
    costs = dict(entries)
    middle = [(tick, costs.get(tick, 0)) for tick in named]
    ends = LogEnds(entries[:front], entries[len(entries) - min(back, len(entries)) :], middle, front > len(entries))
    return PartialLog("ab", sum(costs.values()), 0, 0, ends)


def written(entries: Entries, log: PartialLog) -> Entries:
    """The table after the changes are written, as the next reader sees it."""
    table = {**dict(entries), **log.changes}
    return [(tick + log.moved, cost) for tick, cost in sorted(table.items()) if tick > log.dropped and cost]


def ask(log: ListLog | PartialLog, total: int, question: tuple[str, int, int]) -> tuple[int, int]:
    """The result, and the total cost afterwards."""
    kind, number, cost = question
    if kind == "expired":
        return log.expired(number), total
    if kind == "freed" and total:
        return log.tick_when_freed(1 + number % total), total
    if kind == "charged":
        return log.cost_at(number), total
    if kind == "drop":
        dropped = log.expired(number)
        log.drop(dropped)
        return dropped, total - dropped
    if kind == "take back":
        held = log.cost_at(number)
        back = min(held, cost)
        if back:
            log.take_back(number, back)
        return back, total - back
    if kind == "shift":
        log.shift(-number)
    return 0, total


@settings(max_examples=examples(400), deadline=None)
@given(
    st.dictionaries(st.integers(1, 40), st.integers(1, 5), max_size=20),
    st.integers(0, 8),
    st.integers(1, 4),
    st.lists(st.integers(1, 40), max_size=3),
    st.lists(
        st.tuples(
            st.sampled_from(("expired", "freed", "charged", "drop", "take back", "append", "shift")),
            st.integers(0, 45),
            st.integers(1, 6),
        ),
        max_size=8,
    ),
)
def test_partial_log_matches_the_whole_log(
    known: dict[int, int], front: int, back: int, named: list[int], questions: Questions
) -> None:
    entries = sorted(known.items())
    model, log = whole_log(entries), partial(entries, front, back, named)
    total = sum(known.values())
    newest = max(known, default=1)
    for question in questions:
        try:
            if question[0] == "append":
                newest += question[1] % 3
                tick = newest + log.moved
                log.append(tick, question[2])
                model.append(tick, question[2])
                total += question[2]
                continue
            answer = ask(log, total, question)
        except NeedMoreEntriesError:
            assert log.hidden, "a fully loaded log never asks for more"
            return
        assert answer == ask(model, total, question), question
        total = answer[1]
        if question[0] == "drop":
            newest = max(newest, question[1] - log.moved + 1)  # expired entries are older than any later request
        assert log.oldest <= min((tick for tick, _ in model.entries()), default=log.oldest)
    assert written(entries, log) == [entry for entry in model.entries() if entry[1]]


def test_expired_entries_are_read_as_a_sum() -> None:
    """Entries before the cutoff are read as one sum. Results about later entries are the same."""
    entries = [(tick, 2) for tick in range(1, 100)]
    ends = LogEnds([(50, 100), *entries[50:60]], entries[-2:], [], whole=False)
    log = PartialLog("ab", 198, 0, 0, ends)
    assert log.expired(50) == 100
    assert log.expired(52) == 104
    assert log.tick_when_freed(101) == 51
    log.drop(104)
    assert (log.dropped, log.oldest) == (52, 53)


def test_long_log_expires_without_being_read() -> None:
    log = partial([(tick, 3) for tick in range(1, 1000)], 4, 2, [])
    assert log.expired(2000) == 999 * 3
    log.drop(999 * 3)
    assert (log.dropped, log.newest(), log.hidden) == (999, 999, 0)


def test_unread_log_needs_more_entries() -> None:
    log = PartialLog("ab", 7, 0, 0, UNREAD)
    for question in (
        lambda: log.expired(5),
        lambda: log.tick_when_freed(1),
        lambda: log.cost_at(5),
        lambda: log.append(9, 1),
    ):
        with pytest.raises(NeedMoreEntriesError):
            question()


def test_deleted_entries_no_longer_count() -> None:
    log = PartialLog("ab", 7, 0, 0, EMPTY_LOG)
    assert (log.total, log.hidden, log.expired(5)) == (0, 0, 0)
