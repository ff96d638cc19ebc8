"""The linearizability checker, held against a search over all orders, and against injected lies."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest
from chaos.history import FOREVER, Operation
from chaos.linearizability import Jump, Verdict, check_counter
from hypothesis import given, settings
from hypothesis import strategies as st

CAPACITY = 12


def run(
    rng: random.Random, count: int, capacity: int, lost: float = 0.0, costs: tuple[int, ...] = (1, 2)
) -> list[Operation]:
    """A true history of concurrent operations: each takes effect at an instant of its interval."""
    instants = sorted(rng.sample(range(count * 10), count))
    used, history = 0, []
    for instant in instants:
        start, end = instant - rng.randrange(1, 40), instant + rng.randrange(1, 40)
        change = rng.choice(costs)
        allowed = used + change <= capacity
        if rng.random() < lost:
            if rng.random() < 0.5 and allowed:
                used += change
            history.append(Operation("k", change, start, FOREVER, None, None, "fail_open"))
            continue
        used += change * allowed
        history.append(Operation("k", change, start, end, allowed, capacity - used))
    return history


def brute_force(history: list[Operation], capacity: int) -> bool:
    """All orders of all subsets of the unknown, tried one by one."""
    known = [operation for operation in history if operation.known]
    unknown = [operation for operation in history if not operation.known]
    for bits in range(1 << len(unknown)):
        chosen = known + [operation for index, operation in enumerate(unknown) if bits >> index & 1]
        if any(_valid(order, capacity) for order in permutations(chosen)):
            return True
    return False


def _valid(order: tuple[Operation, ...], capacity: int) -> bool:
    used = 0
    for index, operation in enumerate(order):
        if any(later.end < operation.start for later in order[index + 1 :]):
            return False
        fits = used + operation.change <= capacity
        if not operation.known:
            if not fits:
                return False
            used += operation.change
            continue
        if operation.allowed:
            used += operation.change
        if fits is not operation.allowed or operation.remaining != capacity - used:
            return False
    return True


@settings(max_examples=30)
@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.3]))
def test_true_histories_are_linearizable(seed: int, lost: float) -> None:
    history = run(random.Random(seed), 60, 50, lost)
    assert check_counter(history, 50) is Verdict.LINEARIZABLE


@settings(max_examples=30)
@given(st.integers(0, 10**9))
def test_agrees_with_a_search_over_all_orders(seed: int) -> None:
    rng = random.Random(seed)
    history = run(rng, 6, 4, 0.3)
    for _ in range(rng.randrange(3)):  # spoil it, or not
        index = rng.randrange(len(history))
        operation = history[index]
        if operation.remaining is not None:
            history[index] = replace(operation, remaining=max(0, operation.remaining + rng.choice((-1, 1))))
    found = check_counter(history, 4)
    assert (found is Verdict.LINEARIZABLE) == brute_force(history, 4)


def admitted(history: list[Operation]) -> list[int]:
    return [index for index, operation in enumerate(history) if operation.allowed]


@settings(max_examples=30)
@given(st.integers(0, 10**9))
def test_a_decision_given_twice_is_detected(seed: int) -> None:
    history = run(random.Random(seed), 30, CAPACITY)
    twice = history[random.Random(seed).choice(admitted(history))]
    assert check_counter([*history, twice], CAPACITY) is Verdict.VIOLATED


@settings(max_examples=30)
@given(st.integers(0, 10**9))
def test_a_dropped_decision_is_detected(seed: int) -> None:
    history = run(random.Random(seed), 30, CAPACITY)
    del history[random.Random(seed).choice(admitted(history))]
    assert check_counter(history, CAPACITY) is Verdict.VIOLATED


@settings(max_examples=30)
@given(st.integers(0, 10**9))
def test_an_altered_remaining_is_detected(seed: int) -> None:
    rng = random.Random(seed)
    history = run(rng, 30, CAPACITY)
    index = rng.choice(admitted(history))
    history[index] = replace(history[index], remaining=(history[index].remaining or 0) + rng.choice((-1, 1)))
    assert check_counter(history, CAPACITY) is Verdict.VIOLATED


@settings(max_examples=30)
@given(st.integers(0, 10**9))
def test_a_decision_moved_in_time_is_detected(seed: int) -> None:
    rng = random.Random(seed)
    history = run(rng, 30, CAPACITY)
    index = rng.choice(admitted(history)[1:])  # the first, moved before all others, is still the first
    moved = history[index]
    early = min(operation.start for operation in history) - 100
    history[index] = replace(moved, start=early, end=early + 1)
    assert check_counter(history, CAPACITY) is Verdict.VIOLATED


@settings(max_examples=30)
@given(st.integers(0, 10**9))
def test_a_denial_below_the_limit_is_detected(seed: int) -> None:
    history = run(random.Random(seed), 30, 100)
    index = random.Random(seed).randrange(30)
    operation = history[index]
    history[index] = replace(operation, allowed=False, remaining=(operation.remaining or 0) + operation.change)
    assert check_counter(history, 100) is Verdict.VIOLATED


@settings(max_examples=30)
@given(st.integers(0, 10**9))
def test_an_unknown_operation_counts_at_most_once(seed: int) -> None:
    """Both counted twice: two more are used than all operations together can explain."""
    history = run(random.Random(seed), 20, 100, costs=(1,))
    start = min(operation.start for operation in history)
    unknown = Operation("k", 1, start, FOREVER, None, None, "fail_open")
    shifted = [replace(operation, remaining=(operation.remaining or 0) - 1) for operation in history]
    assert check_counter([*shifted, unknown], 100) is Verdict.LINEARIZABLE
    twice = [replace(operation, remaining=(operation.remaining or 0) - 2) for operation in history]
    assert check_counter([*twice, unknown], 100) is Verdict.VIOLATED
    late = replace(unknown, start=max(operation.end for operation in history) + 1)
    assert check_counter([*shifted, late], 100) is Verdict.VIOLATED


def sequence(*remaining: int, begin: int = 0) -> list[Operation]:
    return [Operation("k", 1, begin + 10 * i, begin + 10 * i + 5, True, left) for i, left in enumerate(remaining)]


def test_loss_is_accepted_only_while_the_fault_lasted() -> None:
    history = [*sequence(9, 8, 7), *sequence(9, 8, begin=100)]
    assert check_counter(history, 10) is Verdict.VIOLATED
    assert check_counter(history, 10, [Jump(30, 90)]) is Verdict.LINEARIZABLE
    assert check_counter(history, 10, [Jump(106, 120)]) is Verdict.VIOLATED
    assert check_counter(history, 10, [Jump(0, 9)]) is Verdict.VIOLATED
    assert check_counter([*history, *sequence(9, begin=200)], 10, [Jump(30, 90)]) is Verdict.VIOLATED


@pytest.mark.parametrize(("low", "verdict"), [(2, Verdict.LINEARIZABLE), (3, Verdict.VIOLATED)])
def test_failover_loses_no_more_than_the_lag(low: int, verdict: Verdict) -> None:
    """Five were used; the replica knows of two. That is accepted if the lag allows it."""
    history = [*sequence(9, 8, 7, 6, 5), *sequence(7, 6, begin=100)]
    assert check_counter(history, 10, [Jump(46, 99, low)]) is verdict


def test_give_backs_move_the_counter_back() -> None:
    history = [*sequence(9, 8), Operation("k", -2, 30, 35, True, None), *sequence(9, begin=50)]
    assert check_counter(history, 10) is Verdict.LINEARIZABLE
    assert check_counter([*history[:2], *history[3:]], 10) is Verdict.VIOLATED
    perhaps = replace(history[2], allowed=None, end=FOREVER)
    assert check_counter([*history[:2], perhaps, *history[3:]], 10) is Verdict.LINEARIZABLE


def test_long_history_with_many_unknown_operations_is_decided() -> None:
    history = run(random.Random(5), 800, 600, 0.3)
    assert check_counter(history, 600) is Verdict.LINEARIZABLE
    index = next(i for i in reversed(admitted(history)))
    assert check_counter([*history, history[index]], 600) is Verdict.VIOLATED
