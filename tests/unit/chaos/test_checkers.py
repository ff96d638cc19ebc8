"""The checkers of histories: true histories pass, and each kind of lie is found."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from chaos.checkers import (
    SECOND,
    Bound,
    bound_of,
    chain_mismatches,
    double_counted,
    false_denials,
    late_answers,
    latency,
    leaks,
    over_admission,
    policy_decisions,
    recovery_seconds,
)
from chaos.history import FOREVER, Journal, Operation, by_key, read_journals
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate import Limiter
from crestgate.testing import FakeClock

ALGORITHMS = ("token_bucket", "leaky_bucket", "gcra", "fixed_window", "sliding_window_log", "sliding_window_counter")
MS = SECOND // 1000
WIDTH = 3 * MS
"""How long before and after its instant the caller of an operation waited at most."""


def play(seed: int, algorithm: str, count: int = 10, checks: int = 100) -> tuple[list[Operation], Bound]:
    """A true history: checks of the memory store on virtual time, each at an instant of its interval."""
    rng = random.Random(seed)
    clock = FakeClock(1_700_000_000 + rng.random())
    history = []
    with Limiter("memory://", clock=clock) as limiter:
        for _ in range(checks):
            clock.advance(rng.choice((0.001, 0.02, 0.1)))
            instant = int(clock.now() * 1000) * MS
            decision = limiter.check("k", f"{count}/second using {algorithm}")
            begin, end = instant - rng.randrange(WIDTH), instant + rng.randrange(WIDTH)
            history.append(Operation("k", 1, begin, end, decision.allowed, decision.remaining, answered=end))
    return history, bound_of(algorithm, count, 1.0)


def never(operation: Operation) -> int:
    return operation.answered


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=12)
@given(seed=st.integers(0, 10**9))
def test_true_histories_are_within_the_bounds(algorithm: str, seed: int) -> None:
    history, bound = play(seed, algorithm)
    assert over_admission(history, bound)[0] == 0
    assert false_denials(history, bound, never) == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=12)
@given(seed=st.integers(0, 10**9))
def test_admissions_given_twice_are_over_the_bound(algorithm: str, seed: int) -> None:
    """Each admission of a full load, told three times: more than any algorithm allows."""
    history, bound = play(seed, algorithm)
    told = [operation for operation in history for _ in range(3 if operation.allowed else 1)]
    assert over_admission(told, bound)[0] > 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=12)
@given(seed=st.integers(0, 10**9))
def test_admissions_that_are_dropped_leave_denials_unexplained(algorithm: str, seed: int) -> None:
    history, bound = play(seed, algorithm)
    kept = [operation for operation in history if not operation.allowed]
    assert len(false_denials(kept, bound, never)) == len(kept) > 0


@settings(max_examples=12)
@given(seed=st.integers(0, 10**9))
def test_a_denial_moved_to_the_beginning_is_unexplained(seed: int) -> None:
    history, bound = play(seed, "token_bucket")
    denial = next(operation for operation in history if not operation.allowed)
    early = min(operation.start for operation in history) - SECOND
    moved = replace(denial, start=early, end=early + MS, answered=early + MS)
    assert false_denials([*history, moved], bound, never) == [moved]


def test_unknown_operations_may_explain_a_denial_until_they_are_settled() -> None:
    bound = bound_of("fixed_window", 1, 1.0)
    unknown = Operation("k", 1, 0, FOREVER, None, None, "fail_open", answered=MS)
    denial = Operation("k", 1, 5 * SECOND, 5 * SECOND + MS, False, 0, "limited")
    assert false_denials([unknown, denial], bound, lambda _: 5 * SECOND) == []
    assert false_denials([unknown, denial], bound, lambda _: 2 * SECOND) == [denial]


@given(st.integers(0, 5), st.integers(0, 5), st.integers(-3, 10))
def test_counted_twice_or_lost(admitted: int, unknown: int, used: int) -> None:
    history = [Operation("k", 1, 0, 1, True, 0)] * admitted
    history += [Operation("k", 1, 0, FOREVER, None, None, "fail_open")] * unknown
    history += [Operation("k", 1, 0, 1, False, 0, "limited")] * 3
    found = double_counted(history, used)
    assert (found > 0) == (used > admitted + unknown)
    assert (found < 0) == (used < admitted)


def test_give_backs_are_subtracted() -> None:
    history = [Operation("k", 5, 0, 1, True, 0), Operation("k", -3, 2, 3, True, None)]
    assert [double_counted(history, used) for used in (1, 2, 3)] == [-1, 0, 1]


def test_chains_are_charged_together() -> None:
    assert chain_mismatches([[3, 3], [4, 4, 4]]) == 0
    assert chain_mismatches([[3, 4], [4, 4, 5], [1, 1]]) == 2


def call(start: float, took: float, number: int, reason: str = "ok") -> Operation:
    begin, answered = int(start * SECOND), int((start + took) * SECOND)
    allowed = True if reason == "ok" else None
    return Operation("k", 1, begin, answered, allowed, 0, reason, 7, number, answered)


def test_an_answer_after_its_deadline_is_found() -> None:
    history = [call(i, 0.05, i) for i in range(10)] + [call(20, 0.5, 20)]
    assert latency(history).longest == pytest.approx(0.5)
    [(late, over)] = late_answers(history, 0.2, [], {})
    assert late.call == 20
    assert over == pytest.approx(0.3)


def test_an_answer_that_the_machine_delayed_is_not_late() -> None:
    history = [call(20, 0.5, 20)]
    assert late_answers(history, 0.2, [(int(20.2 * SECOND), 0.04)], {}) == []
    assert late_answers(history, 0.2, [(int(20.2 * SECOND), 0.02)], {}) != []
    assert late_answers(history, 0.2, [(int(25.2 * SECOND), 0.04)], {}) != []


def test_time_in_which_the_client_was_stopped_does_not_count() -> None:
    history = [call(20, 0.5, 20)]
    stopped = [(int(20.1 * SECOND), int(20.4 * SECOND))]
    assert late_answers(history, 0.2, [], {7: stopped}) == []
    assert late_answers(history, 0.2, [], {8: stopped}) != []


def test_a_batch_is_one_call() -> None:
    history = [call(1, 0.1, 1), call(1, 0.1, 1), call(2, 0.1, 2)]
    assert latency(history).calls == 2


def test_recovery_is_when_the_store_decides_again() -> None:
    failing = [call(i / 20, 0.01, i, "fail_open") for i in range(30)]
    healthy = [call(1.5 + i / 20, 0.01, 100 + i) for i in range(40)]
    found = recovery_seconds([*failing, *healthy], SECOND, 10 * SECOND)
    assert found is not None
    assert 0.2 < found <= 0.5
    assert recovery_seconds(failing, 0, 10 * SECOND) is None
    assert policy_decisions([*failing, *healthy]) == 30


def test_leaks_are_what_is_more_than_before() -> None:
    assert leaks({"fds": 5, "threads": 2}, {"fds": 7, "threads": 1}) == {"fds": 2}


def test_journal_of_a_killed_client_keeps_its_last_operation(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    journal = Journal(str(file), 3)
    first = journal.begin([("a", 1), ("b", 2)], 10)
    journal.begin([("a", 1)], 11)
    journal.end(first, 20, [(True, 4, "ok"), (False, 0, "limited")])
    failed = journal.begin([("b", 1)], 30)
    journal.end(failed, 31, [(True, 5, "fail_open")])
    keys = by_key(read_journals([file]))
    assert [(o.start, o.end, o.allowed, o.remaining) for o in keys["a"]] == [
        (10, 20, True, 4),
        (11, FOREVER, None, None),
    ]
    assert [(o.allowed, o.reason, o.answered) for o in keys["b"]] == [(False, "limited", 20), (None, "fail_open", 31)]
    assert {o.client for o in keys["a"]} == {3}
